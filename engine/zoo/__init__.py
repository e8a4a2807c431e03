"""Three small tasks for configs, docs and tests: models, augmentations and a trainer."""

from engine.zoo.char_lm import CharacterGRU
from engine.zoo.classifier import ImageClassifier
from engine.zoo.digits import DigitsCNN, DigitsMLP
from engine.zoo.fashion_mnist import FashionCNN

__all__ = ["CharacterGRU", "DigitsCNN", "DigitsMLP", "FashionCNN", "ImageClassifier"]
