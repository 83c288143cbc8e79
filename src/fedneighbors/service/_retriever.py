"""A retriever of LangChain over a collection of a broker."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import Field, PrivateAttr

from fedneighbors.datasets._objects import read_text_query
from fedneighbors.errors import DataError, MissingExtraError
from fedneighbors.service._client import AsyncRemoteNeighbors, RemoteNeighbors

try:
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
    )
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
except ModuleNotFoundError:
    raise MissingExtraError("langchain_core", "langchain") from None


class FederatedRetriever(BaseRetriever):
    """The nearest objects of a broker's providers, as documents of LangChain.

    Parameters
    ----------
    search : RemoteNeighbors or AsyncRemoteNeighbors
        The collection, with ``payload=True``. ``ainvoke`` with the former searches in a thread; the
        latter has no ``invoke``, and belongs to one event loop.
    embeddings : langchain_core.embeddings.Embeddings, optional
        Turns a text into the vector that is sent; the text stays here. Without it, the text itself
        is the query: a string, the words of a set, SMILES, comma-separated numbers, or JSON of a
        row.
    k : int
        Number of documents. ``invoke(text, k=...)`` has another.
    where : mapping, optional
        Filter, as for :meth:`RemoteNeighbors.kneighbors`. ``invoke(text, where=...)`` has another.
    content : str
        Column of the payload with the text of a document.
    *args, name, tags, metadata : optional
        As for every retriever of LangChain.

    Notes
    -----
    The metadata of a document are ``provider``, ``id``, ``distance`` (None if a provider shows
    none), ``trust``, ``exact``, and ``payload``, the other columns.

    Examples
    --------
    >>> from fedneighbors.service import RemoteNeighbors
    >>> search = RemoteNeighbors(
    ...     "https://broker.example", collection="reports", token="fn_...", payload=True
    ... )
    >>> FederatedRetriever(search=search, k=3, content="text").k
    3
    """

    search: RemoteNeighbors | AsyncRemoteNeighbors = Field(exclude=True)  # it has the token
    embeddings: Embeddings | None = None
    k: int = Field(default=4, ge=1)
    where: Mapping[str, Any] | None = None
    content: str = "text"

    _facts: dict[str, Any] | None = PrivateAttr(default=None)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 - LangChain looks for it
        **options: Any,
    ) -> list[Document]:
        if not isinstance(self.search, RemoteNeighbors):
            raise TypeError("expected RemoteNeighbors for invoke, got AsyncRemoteNeighbors")
        facts = self._facts = self._facts or self.search.describe()
        vector = None if self.embeddings is None else self.embeddings.embed_query(query)
        arguments = self._read_arguments(query, vector, facts, **options)
        self.search.kneighbors(*arguments, where=options.get("where", self.where))
        return self._make_documents(self.search.results_[0])

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        if isinstance(self.search, RemoteNeighbors):
            manager = run_manager.get_sync()
            return await asyncio.to_thread(
                self._get_relevant_documents, query, run_manager=manager, **options
            )
        facts = self._facts = self._facts or await self.search.describe()
        vector = None if self.embeddings is None else await self.embeddings.aembed_query(query)
        arguments = self._read_arguments(query, vector, facts, **options)
        await self.search.kneighbors(*arguments, where=options.get("where", self.where))
        return self._make_documents(self.search.results_[0])  # no other task has run since

    def _read_arguments(
        self, query: str, vector: list[float] | None, facts: dict[str, Any], **options: Any
    ) -> tuple[list[Any], int]:
        """Return the queries and k of a call that can return documents."""
        unknown = sorted(options.keys() - {"k", "where"})
        if unknown:
            raise TypeError(f"expected k or where, got {unknown[0]!r}")
        if not self.search.payload:
            raise ValueError("expected a client with payload=True: documents are made of payloads")
        self.search.check_objects(facts)
        k = int(options.get("k", self.k))
        if vector is not None:
            return [vector], k
        names = tuple(facts["columns"] or ())
        try:
            return [read_text_query(query, facts["objects"], columns=names)], k
        except DataError as error:
            if facts["objects"] != "vectors":
                raise
            raise DataError(f"{error}; pass embeddings, which turn a text into a vector") from None

    def _make_documents(self, answer: dict[str, Any]) -> list[Document]:
        documents = []
        for one in answer["neighbors"]:
            payload = dict(one["payload"])
            if self.content not in payload:
                raise DataError(
                    f"object {one['id']!r} of provider {one['provider']!r} has no column "
                    f"{self.content!r}, only {sorted(payload)}; its provider has to list the "
                    "column under payload, or content has to name another"
                )
            metadata = {name: one[name] for name in ("provider", "id", "distance")}
            metadata |= {name: answer[name] for name in ("trust", "exact")}
            text = payload.pop(self.content)
            documents.append(
                Document(
                    "" if text is None else str(text),
                    id=f"{one['provider']}/{one['id']}",
                    metadata={**metadata, "payload": payload},
                )
            )
        return documents
