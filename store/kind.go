package store

import "encoding/json"

// KindSpec describes one kind.
type KindSpec struct {
	Kind Kind
	// Render returns the wire form of the document as it will be stored; the store calls it once
	// for each write. Its result must depend on the document alone. An error refuses the write,
	// wrapped in ErrInvalid. Nil: no wire form.
	Render func(Document) ([]byte, error)
	// Head returns how many of the wire form's first bytes change only with the spec or with a
	// deletion. PostgreSQL stores these separately, so that a change of the status does not write
	// them again. Nil: 0.
	Head func(wire []byte) int
	// Tail returns the part of the wire form after the head. The store calls it instead of Render
	// for a change of the status alone, when the head is stored already. Nil: the store calls
	// Render.
	Tail func(Document) ([]byte, error)
	// Facets are words by which an index on the table feed finds documents: "Reconciled=False".
	// Nil: none.
	Facets func(Document) []string
	// Detail returns at which byte of a status its last members begin, with their comma, which no
	// search and no index reads. The store keeps these packed, apart from the JSON, so that PostgreSQL
	// neither parses them at a write nor prints them at a read. 0 or less: all members are searched.
	// It gets statuses as callers wrote them. Nil: 0.
	Detail func(status json.RawMessage) int
	// Begin completes the spec of a new document when the store has determined its generation,
	// which follows that of a removed document with the same id. The store may call it several
	// times. Nil: the spec stays as it is.
	Begin func(*Document) error
	// Decode sets Decoded of a stored document. The store calls it once before a change of the
	// document, so that the change, Compare, Recorded and Facets need not decode it each. An error
	// refuses the change. Nil: Decoded stays as it is.
	Decode func(*Document) error
	// Observed reports whether two statuses differ only in times of observation, which are no
	// content (I3): the store writes such a change in place, without a new version, feed entry or
	// record, and wakes no follower. Nil: all differences count. It needs History: after a lost
	// answer to a commit, the record shows which write made a version.
	Observed func(before, after json.RawMessage) bool
	// Compare returns how the statuses of two states of a document differ. It replaces SameJSON and
	// Observed for kinds that can compare faster than by reading all JSON. Nil: SameJSON and
	// Observed.
	Compare func(before, after Document) Difference
	// Observations is the short form of statuses that differ only in times of observation. It needs
	// Compare, Head and Tail. Nil: such statuses are stored in full.
	Observations *ObservationForm
	// SameSpec reports whether the specs of two states of a document have the same content. It replaces
	// SameJSON for kinds that can compare faster than by reading all JSON. Nil: SameJSON.
	SameSpec func(before, after Document) (bool, error)
	// Recorded returns the part of a changed status that the history keeps. The history then keeps
	// this part and the spec packed, and no search reads them. Nil: the history keeps the spec and the
	// whole status, as JSON.
	Recorded func(before, after Document) json.RawMessage
	// History makes the store write a history record of every change in its transaction, with the
	// actor, the spec and the status.
	History bool
	// BriefHistory makes the store write history records without spec and status, and none for a change
	// of the status alone. Such a record shows the actor and the time of a change, and resolves a
	// commit whose answer was lost. Kinds with secrets in their specs use it instead of History.
	BriefHistory bool
	// Owner returns the account that owns a document, for its audit records. Nil: "".
	Owner func(Document) string
	// Sensitive returns where in a spec the values lie that the database must not have in clear, such as the data of
	// Secrets: half-open ranges of its bytes, each one JSON value, in their order. The store encrypts them if it has an
	// Envelope; searches and indexes then do not find them, Render gets a text in their place, and what callers read has
	// them. It is for kinds without History, whose records would have hashes of them, and without Head. Nil: none.
	Sensitive func(spec json.RawMessage) [][2]int
	// Indexes are made at Open, for this kind's rows only.
	Indexes []Index

	sealer *sealer // of the store
}

// Difference is how two statuses differ.
type Difference int

// The differences. ObservedLater is a difference only in times of observation (KindSpec.Observed).
const (
	Equal Difference = iota
	ObservedLater
	Different
)

// Index is an index for List queries on one kind.
type Index struct {
	Name string // letters, digits, underscores; unique within the kind. An index that changes gets another name
	// On is what follows "using": `gin ((spec->'labels') jsonb_path_ops)`, `btree
	// ((spec->>'phase'))`.
	On string
	// Live leaves removed documents out of the index, as lists do, so that PostgreSQL can list from
	// the index alone.
	Live bool
}
