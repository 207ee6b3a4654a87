"""The seed model: a small transformer that learnt two worlds from their experts, as far as practice takes over."""
