"""TLS for clients that use Python's `ssl`, and diagnosis of certificate errors."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path


def context(ca: Path | None, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Return a client context that verifies certificate and host name. All files are PEM.

    `ca`: trusted authorities, None = the system's. `certificate`, `key`: those of the client; no password.
    Raises OSError (ssl.SSLError is one) on invalid files.
    """
    result = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        # Without a password for an encrypted key OpenSSL would prompt on the terminal.
        result.load_cert_chain(certificate, key, password="")
    return result


def file_error(error: OSError) -> str:
    """Return the reason why a certificate or key file cannot be used."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not usable").replace("_", " ").lower()
    return error.strerror or "not readable"


def certificate_error(error: BaseException) -> str:
    """Return the reason why the server's certificate was rejected; "" if the error has another cause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message).rstrip(".")
    return ""


def certificate_error_in(text: str) -> str:
    """Return the same from the text of an error that a library has wrapped."""
    match = re.search(r"certificate verify failed: (.+?)\.? \(_ssl", text)
    return match[1] if match else ""


def certificate_hint(certificate_error: str, address: str, ca: str) -> str:
    """Return a remedy for a certificate error; `address` and `ca` are the names of the settings concerned."""
    if "mismatch" in certificate_error:
        return f"{address} must use a name that is in the certificate"
    if "expired" in certificate_error or "not yet valid" in certificate_error:
        return "the server needs one that is valid now"
    return f"{ca} must name the PEM file of the authority that signed it"


def probe_certificate(host: str, port: int, client: ssl.SSLContext, timeout_s: float = 3.0) -> str:
    """Return the certificate error of one handshake with the host; "" without an error or an answer. Blocks."""
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as plain,
            client.wrap_socket(plain, server_hostname=host),
        ):
            return ""
    except OSError as error:
        return certificate_error(error)


def accepts_tls(host: str, port: int, timeout_s: float = 3.0) -> bool:
    """Return whether a TLS handshake with the host succeeds, with any certificate. Sends no data. Blocks."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as plain, unverified.wrap_socket(plain):
            return True
    except OSError:
        return False
