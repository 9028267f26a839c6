"""What training frameworks need to use Brand's loaders: each module imports one framework.

accelerate     prepare: a loader under Accelerate, with a state that goes on anywhere
lightning      BrandDataModule: loaders for a Lightning Trainer
transformers   BrandTrainerMixin: draws for the Hugging Face Trainer

`docs/frameworks.md` says what works without these modules, and what is refused.
"""
