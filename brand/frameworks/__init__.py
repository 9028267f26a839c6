"""How do training frameworks use Brand's loaders? Each module imports one framework.

accelerate     prepare: a loader under Accelerate, with a state for any number of processes
lightning      BrandDataModule: loaders for a Lightning Trainer
transformers   BrandTrainerMixin: shuffled fetches for the Hugging Face Trainer

`docs/guides/frameworks.md` lists the features that work without these modules, and the uses that are refused.
"""
