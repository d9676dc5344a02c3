"""The records themselves: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.inputs.cafe import Cafe
from fedspill.leaks.inputs.cafe_paper import CafePaper
from fedspill.leaks.inputs.class_fishing import ClassFishing
from fedspill.leaks.inputs.dlg import DeepLeakage
from fedspill.leaks.inputs.fedavg_leakage import FedAvgLeakage
from fedspill.leaks.inputs.grad_inversion import GradInversion
from fedspill.leaks.inputs.group_metrics import InputsGrouped
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.idlg import ImprovedDeepLeakage
from fedspill.leaks.inputs.inputs import Reconstruction
from fedspill.leaks.inputs.inverting_gradients import InvertingGradients
from fedspill.leaks.inputs.leak import INPUTS
from fedspill.leaks.inputs.loki import Loki
from fedspill.leaks.inputs.metrics import (
    CertificatePrecision,
    InputsLpips,
    InputsMse,
    InputsPsnr,
    InputsRecognisable,
    InputsRecovered,
    InputsSsim,
)
from fedspill.leaks.inputs.planted_inputs import PlantedInputs
from fedspill.leaks.inputs.robbing_the_fed import RobbingTheFed
from fedspill.leaks.inputs.sapag import Sapag
from fedspill.leaks.inputs.scale_mia import ScaleMia
from fedspill.leaks.inputs.summed_inputs import SummedInputs
from fedspill.leaks.inputs.tile_metrics import TilePsnr
from fedspill.leaks.inputs.trap_weights import TrapWeights

__all__ = [
    "INPUTS",
    "Cafe",
    "CafePaper",
    "CertificatePrecision",
    "ClassFishing",
    "DeepLeakage",
    "FedAvgLeakage",
    "GradInversion",
    "ImprovedDeepLeakage",
    "Inputs",
    "InputsGrouped",
    "InputsLpips",
    "InputsMse",
    "InputsPsnr",
    "InputsRecognisable",
    "InputsRecovered",
    "InputsSsim",
    "InvertingGradients",
    "Loki",
    "PlantedInputs",
    "Reconstruction",
    "RobbingTheFed",
    "Sapag",
    "ScaleMia",
    "SummedInputs",
    "TilePsnr",
    "TrapWeights",
]
