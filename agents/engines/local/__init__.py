"""Parts of the in-process engine. Importing its modules imports torch."""
