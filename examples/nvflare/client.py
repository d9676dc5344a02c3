"""The client side, as anywhere: receives a model, trains it, sends it back."""

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel
from task import Net, load_data, train

flare.init()
x, y = load_data(int(flare.get_site_name().split("-")[-1]) - 1, 2)
net = Net()
while flare.is_running():
    net.load_state_dict({name: torch.as_tensor(value) for name, value in flare.receive().params.items()})
    train(net, x, y, lr=0.1, batch_size=16)
    flare.send(FLModel(params={name: t.cpu() for name, t in net.state_dict().items()}, meta={"examples": len(y)}))
