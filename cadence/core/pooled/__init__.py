"""What a model is asked for in place of text: tasks, parameters, values, and how near two vectors are. Imports
`core`.
"""
