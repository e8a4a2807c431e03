from pathlib import Path

from setuptools import find_packages, setup

readme = Path(__file__).with_name("README.md")

digits = ["scikit-learn>=1.3"]
export = ["safetensors>=0.4"]

setup(
    name="train-engine",
    version="0.1.0",
    description="A PyTorch training engine: trainer, hooks, event storage and writers",
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["engine", "engine.*"]),
    package_data={"engine.report": ["page.html", "page.css", "page.js"]},
    python_requires=">=3.10",
    install_requires=[
        "torch>=2.4",
        "numpy>=1.24",
        "cloudpickle>=2.2",
        "fvcore>=0.1.5.post20221221",
        "google-crc32c>=1.5",
        "iopath>=0.1.9,<0.2",
        "omegaconf>=2.4",
        "orjson>=3.9",
        "PyYAML>=6.0",
        "tabulate>=0.9",
        "tensorboard>=2.12",
        "termcolor>=2.1",
        "tqdm>=4.62",
        "yacs>=0.1.8",
    ],
    extras_require={
        "digits": digits,
        "export": export,
        "trackers": ["mlflow>=2.14", "trackio>=0.2", "wandb>=0.17"],
        "dev": [
            *digits,
            *export,
            "hypothesis>=6.90",
            "mypy>=1.11",
            "packaging>=22",
            "pytest>=8.0",
            "pytest-cov>=4.1",
            "pytest-timeout>=2.3",
            "ruff>=0.6",
        ],
        "docs": ["furo>=2024.1", "myst-parser>=3.0", "sphinx>=7.2"],
    },
)
