"""Settings of archive, Grafana, notices and web page: addresses, certificates, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, model_validator

from drumline.infra.config.validation import (
    NO_VARIABLE,
    FileContent,
    SettingsModel,
    check_certificates,
    check_url,
    read_secret,
)
from drumline.infra.config.webhook_key import webhook_key_bytes


class ArchiveSettings(SettingsModel):
    """The archive: storage where the agent puts segments after Kafka acknowledged them."""

    url: str = Field("", pattern="^(s3://.+)?$", description="s3://bucket/prefix; empty = no archive")
    endpoint: str = Field("", description="http(s)://host:port of S3-compatible storage; empty = AWS")
    region: str = Field("us-east-1", description="region of the bucket")
    key_id: str = Field("", description="access key; empty = credentials of the environment, web identity or instance")
    secret: FileContent = None
    secret_file: Path | None = Field(None, description="file with the secret of the access key")
    backlog_mb: int = Field(
        256, ge=1, description="maximum size of waiting segments; the oldest are dropped beyond it; MB"
    )

    @model_validator(mode="after")
    def _secrets(self) -> ArchiveSettings:
        self.secret = read_secret("ARCHIVE__SECRET", self.secret, self.secret_file)
        check_url("ARCHIVE__ENDPOINT", self.endpoint)
        return self


class GrafanaSettings(SettingsModel):
    """The Grafana server of `drumline grafana apply`, and the receivers of alerts."""

    url: str = Field("", description="http(s)://host:port of Grafana")
    token: FileContent = None
    token_file: Path | None = Field(None, description="file with the token of a service account with role Admin")
    webhook: SecretStr | None = Field(None, description="URL to which alerts are posted")
    slack: SecretStr | None = Field(None, description="incoming-webhook URL of Slack")
    pagerduty: SecretStr | None = Field(None, description="integration key of PagerDuty")

    @model_validator(mode="after")
    def _secrets(self) -> GrafanaSettings:
        self.token = read_secret("GRAFANA__TOKEN", self.token, self.token_file)
        check_url("GRAFANA__URL", self.url)
        return self


class OffenderSettings(SettingsModel):
    """The webhook of `drumline notify`, about hosts that are at fault again."""

    webhook: SecretStr | None = Field(None, description="URL to which notices are posted")
    webhook_key: FileContent = None
    webhook_key_file: Path | None = Field(
        None, description="file with the key that signs them: `whsec_` and 24 to 64 random bytes in base64"
    )

    @model_validator(mode="after")
    def _secrets(self) -> OffenderSettings:
        self.webhook_key = read_secret("OFFENDERS__WEBHOOK_KEY", self.webhook_key, self.webhook_key_file)
        check_url("OFFENDERS__WEBHOOK", self.webhook.get_secret_value() if self.webhook else "")
        if self.webhook_key is not None:
            try:
                webhook_key_bytes(self.webhook_key.get_secret_value())
            except ValueError as error:
                raise ValueError(f"DRUMLINE_OFFENDERS__WEBHOOK_KEY_FILE {error}") from None
        return self


#: Address of the web page by default: links in alerts lead there.
WEB_PAGE = "http://127.0.0.1:18080"


class ServeSettings(SettingsModel):
    """The web page of `drumline serve`."""

    address: Annotated[str, NO_VARIABLE] = "127.0.0.1"  # --address
    port: int = Field(18080, ge=0, le=65535, description="port of the web page; 0 = any free one")
    url: str = Field(
        "",
        description="http(s)://host:port by which browsers reach it, comma separated, where that is not this host; "
        "commands and alerts link to the first",
    )
    token: FileContent = None
    token_file: Path | None = Field(None, description="file with the token that browsers must send; none = no token")
    certificate: Path | None = Field(None, description="certificate, PEM, for https; none = http")
    key: Path | None = Field(None, description="private key of that certificate, PEM, without password")

    @property
    def web_page(self) -> str:
        """Return the address that links lead to."""
        return self.url.partition(",")[0].strip() or WEB_PAGE

    @model_validator(mode="after")
    def _secrets(self) -> ServeSettings:
        self.token = read_secret("SERVE__TOKEN", self.token, self.token_file)
        if self.token is not None and len(self.token.get_secret_value()) < 16:
            raise ValueError("DRUMLINE_SERVE__TOKEN_FILE needs 16 characters or more")
        check_certificates(("", None), ("SERVE__CERTIFICATE", self.certificate), ("SERVE__KEY", self.key))
        check_url("SERVE__URL", self.url)
        return self
