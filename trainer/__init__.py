"""The bundled trainer: a language-action model on camera, lidar, radar and text, streamed and resumable."""
