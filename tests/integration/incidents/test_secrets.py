"""Keys that encrypt the secrets of channels."""

from __future__ import annotations

import pytest
from cryptography.fernet import Fernet

from app.errors import SecretKeyError
from app.incidents.secrets import seal, unseal
from app.platform.settings import Settings


def test_keys_rotate(settings: Settings) -> None:
    old, new, other = (Fernet.generate_key().decode() for _ in range(3))

    def with_keys(*keys: str) -> Settings:
        return settings.model_copy(update={"secret_keys": keys})

    sealed = seal(with_keys(old), {"url": "x"})
    assert unseal(with_keys(new, old), sealed) == {"url": "x"}
    again = seal(with_keys(new, old), unseal(with_keys(new, old), sealed))
    assert unseal(with_keys(new), again) == {"url": "x"}
    with pytest.raises(SecretKeyError, match="another key"):
        unseal(with_keys(other), again)
    with pytest.raises(SecretKeyError, match="32 bytes"):
        seal(with_keys("short"), {})
    assert old not in repr(with_keys(old))


def test_the_key_file_is_made_once_and_for_its_owner_only(settings: Settings) -> None:
    sealed = seal(settings, {"url": "x"})
    path = settings.data_dir / "secret.key"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_text()
    seal(settings, {})
    assert path.read_text() == before
    assert unseal(settings, sealed) == {"url": "x"}
    assert list(settings.data_dir.glob(".secret*")) == []
    elsewhere = settings.model_copy(update={"secret_key_file": settings.data_dir / "missing"})
    with pytest.raises(SecretKeyError, match="no secret key"):
        seal(elsewhere, {})
