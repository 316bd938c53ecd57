#!/usr/bin/python3
"""The module `munge_key`: a host has this key of MUNGE's, whatever it had before."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: munge_key
short_description: Gives a host this key of MUNGE's
description:
  - Compares keys by their bytes, and replaces the file in one step. M(ansible.builtin.copy) cannot write bytes that are no text.
options:
  key:
    description: The key in Base64, from 32 to 1024 bytes.
    type: str
    required: true
  path:
    description: The file.
    type: path
    default: /etc/munge/munge.key
author: Muster developers (@muster)
"""
EXAMPLES = r"""
- name: Write the key
  muster.appliance.munge_key:
    key: "{{ munge_key }}"
"""
RETURN = r"""
digest:
  description: The SHA-256 of the key's SHA-256, by which hosts can be compared.
  type: str
  returned: always
"""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "key": {"type": "str", "required": True, "no_log": True},
            "path": {"type": "path", "default": "/etc/munge/munge.key"},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    try:
        key = base64.b64decode("".join(module.params["key"].split()), validate=True)
    except binascii.Error as error:
        module.fail_json(msg=f"munge_key is not Base64: {error}; make one with `openssl rand -base64 -A 1024`")
    if not 32 <= len(key) <= 1024:
        module.fail_json(msg=f"munge_key has {len(key)} bytes; it must have from 32 to 1024")
    changed = _read(path) != key
    if changed and not module.check_mode:
        handle, scratch = tempfile.mkstemp(dir=os.path.dirname(path))
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        module.atomic_move(scratch, path)
    arguments = {"path": path, "owner": "munge", "group": "munge", "mode": "0400"}
    if os.path.exists(path):
        file_args = module.load_file_common_arguments(module.params | arguments)
        changed = module.set_fs_attributes_if_different(file_args, changed)
    module.exit_json(changed=changed, digest=hashlib.sha256(hashlib.sha256(key).digest()).hexdigest())


if __name__ == "__main__":
    main()
