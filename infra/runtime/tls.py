"""TLS of clients that take Python's `ssl`, and what is wrong with a server's certificate, in words."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path


def context(
    ca: Path | None, certificate: Path | None = None, key: Path | None = None, key_password: str | None = None
) -> ssl.SSLContext:
    """Verifies certificate and host name. `ca`: authorities to trust, None = the system's. `certificate`, `key`: the
    client's own. All PEM. Raises OSError (ssl.SSLError is one) on bad files."""
    made = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        # Without a password for an encrypted key OpenSSL would ask on the terminal.
        made.load_cert_chain(certificate, key, password=key_password or "")
    return made


def file_error(error: OSError) -> str:
    """What a file that cannot be used suffers from."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not usable").replace("_", " ").lower()
    return error.strerror or "not readable"


def certificate_error(error: BaseException) -> str:
    """What Python's TLS found wrong with the other side's certificate, or "" if the certificate was not the trouble."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message).rstrip(".")
    return ""


def certificate_error_in(text: str) -> str:
    """The same from the text of an error that a library has wrapped."""
    found = re.search(r"certificate verify failed: (.+?)\.? \(_ssl", text)
    return found[1] if found else ""


def certificate_hint(certificate_error: str, address: str, ca: str) -> str:
    """What to do about a complaint; `address` and `ca` name the settings that say whom to call and trust."""
    if "mismatch" in certificate_error:
        return f"{address} must use a name that is in the certificate"
    if "expired" in certificate_error or "not yet valid" in certificate_error:
        return "the server needs one that is valid now"
    return f"{ca} must name the PEM file of the authority that signed it"


def probe_certificate(host: str, port: int, made: ssl.SSLContext, timeout_s: float = 3.0) -> str:
    """One handshake with `host`: what is wrong with its certificate, or "" if nothing is or nobody answers."""
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as plain,
            made.wrap_socket(plain, server_hostname=host),
        ):
            return ""
    except OSError as error:
        return certificate_error(error)


def accepts_tls(host: str, port: int, timeout_s: float = 3.0) -> bool:
    """Whether a TLS handshake with `host` works, whoever that is. Nothing is sent."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as plain, anybody.wrap_socket(plain):
            return True
    except OSError:
        return False
