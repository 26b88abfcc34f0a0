"""Download images by URL, safely and politely."""
