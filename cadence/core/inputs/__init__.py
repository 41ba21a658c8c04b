"""What comes to a model beside tokens: attachments, pictures and sounds, what an encoder reads. Imports `core`."""
