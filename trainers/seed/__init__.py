"""The seed model: a small transformer that learns three worlds from their experts, and the rest by practice."""
