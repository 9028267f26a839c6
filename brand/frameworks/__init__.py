"""What training frameworks need to use Brand's loaders: one module for each framework, which imports it.

accelerate     prepare: a loader under Accelerate, with a state that goes on anywhere
lightning      BrandDataModule: loaders for a Lightning Trainer
transformers   BrandTrainerMixin: draws for the Hugging Face Trainer

What works without them, and what is refused, stands in `docs/frameworks.md`.
"""
