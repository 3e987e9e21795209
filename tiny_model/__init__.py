"""How the model `tiny` (models/tiny) is made: its conversations, its tokenizer, its training, its score."""
