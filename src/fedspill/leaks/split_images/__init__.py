"""The images of a client of split learning: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.split_images.fsha import Fsha
from fedspill.leaks.split_images.guess import RebuiltImages
from fedspill.leaks.split_images.leak import SPLIT_IMAGES
from fedspill.leaks.split_images.metrics import ImagesRecognised, ImageVariance
from fedspill.leaks.split_images.unsplit import Unsplit

__all__ = ["SPLIT_IMAGES", "Fsha", "ImageVariance", "ImagesRecognised", "RebuiltImages", "Unsplit"]
