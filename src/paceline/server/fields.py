"""What becomes of request fields that other servers know and this one does not act on. One table, which the refusals
and the documentation are made from."""

from __future__ import annotations

#: Taken as they are: labels of the caller's own, or values that ask for what happens anyway.
ACCEPTED: dict[str, str] = {
    "user": "a label; not used, not logged",
    "metadata": "labels; not used, not logged (echoed by /v1/responses)",
    "safety_identifier": "a label; not used, not logged",
    "prompt_cache_key": "a label; cache_salt keeps callers apart",
    "service_tier": "auto or default: there is one tier",
    "store": "false only: nothing is stored",
    "modalities": 'only ["text"]',
    "strict": "schemas of response_format and of forced tools are always enforced",
}

#: Known elsewhere, refused here: field -> what to do instead.
REFUSED: dict[str, str] = {
    "audio": "is not supported: this server makes text",
    "functions": "is deprecated; use tools",
    "function_call": "is deprecated; use tool_choice",
    "web_search_options": "is not supported: this server does not search",
    "verbosity": "is not supported; say it in the prompt",
    "chat_template": "is set by the server's operator (--chat-template)",
    "documents": "is not supported; give it in chat_template_kwargs if the template reads it",
    "suffix": "is not supported: this server does not fill in",
    "use_beam_search": "is not supported; use n or best_of",
    "length_penalty": "is not supported, as there is no beam search",
    "skip_special_tokens": "is not supported: special tokens never show",
    "spaces_between_special_tokens": "is not supported: special tokens never show",
    "truncate_prompt_tokens": "is not supported: nothing is cut in silence; shorten the prompt",
    "priority": "is not supported: requests are served in their order",
    "guided_json": "has become structured_outputs.json",
    "guided_regex": "has become structured_outputs.regex",
    "guided_choice": "has become structured_outputs.choice",
    "guided_grammar": "has become structured_outputs.grammar",
    "repeat_penalty": "is called repetition_penalty here",
    "repeat_last_n": "is called penalty_window here",
    "n_predict": "is called max_tokens here",
    "cache_prompt": "is not supported; use cache_salt to keep callers apart",
    "grammar": "is structured_outputs.grammar here",
    "json_schema": "is response_format or structured_outputs.json here",
    "mirostat": "is not supported; use min_p or typical_p",
    "tfs_z": "is not supported; use min_p or typical_p",
    "draft_model": "is set by the server's operator (--spec-model)",
    "previous_response_id": "is not supported: nothing is stored; send the whole conversation as input",
    "conversation": "is not supported: nothing is stored; send the whole conversation as input",
    "background": "is not supported; use stream",
    "include": "is not supported",
    "prompt": "templates are not stored here; send input",
    "max_tool_calls": "is not supported: there are no built-in tools",
}
