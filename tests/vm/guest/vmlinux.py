#!/usr/bin/python3
"""Takes the kernel itself out of a bzImage: `vmlinux.py BZIMAGE VMLINUX`. What is where is in the kernel's Documentation/x86/boot.rst."""

import lzma
import sys
from pathlib import Path

_SECTOR = 512
_SETUP_SECTORS = 0x1F1  # one byte
_PAYLOAD = 0x248  # offset from the end of the setup code, and length: four bytes each


def vmlinux(image: bytes) -> bytes:
    """The kernel, an ELF file, of an image that is compressed with xz, as Debian's are."""
    if image[0x202:0x206] != b"HdrS":
        raise ValueError("this is no bzImage")
    begin = (image[_SETUP_SECTORS] + 1) * _SECTOR + int.from_bytes(image[_PAYLOAD : _PAYLOAD + 4], "little")
    length = int.from_bytes(image[_PAYLOAD + 4 : _PAYLOAD + 8], "little")
    # The size that follows what is compressed is not xz's.
    return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[begin : begin + length])


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(vmlinux(Path(sys.argv[1]).read_bytes()))
