"""One hospital's side, as anywhere in NVFlare; its labels are counted on its own disk, for an audit with truth."""

import sys
from pathlib import Path

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel
from torch import nn

LR, BATCH = 0.1, 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 24), nn.ReLU()), nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.body(x))


def own_data(site):
    rng = torch.Generator().manual_seed(int(site.split("-")[-1]))
    y = torch.multinomial(torch.rand(4, generator=rng) + 0.05, 96, replacement=True, generator=rng)
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(9))[y] + torch.randn(96, 8, generator=rng), y


if __name__ == "__main__":
    flare.init()
    site, net = flare.get_site_name(), Net()
    x, y = own_data(site)
    rows = [f"{site},all,{label},{count}\n" for label, count in enumerate(y.bincount().tolist())]
    (Path(sys.argv[1]) / f"{site}.csv").write_text("client,round,label,count\n" + "".join(rows))
    while flare.is_running():
        net.load_state_dict({name: torch.as_tensor(value) for name, value in flare.receive().params.items()})
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        for batch in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
        flare.send(FLModel(params=net.state_dict(), meta={"examples": len(y)}))
