"""What a model's files say of it, field by field. Imports core."""
