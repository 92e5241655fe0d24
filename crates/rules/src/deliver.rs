//! Calls to webhooks, as jobs of a type of their own.
