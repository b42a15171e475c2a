package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"atoll.dev/envelope"
)

// A sealed document has placeholders in the columns spec and wire in the place of its sensitive values
// (KindSpec.Sensitive), and these values encrypted in the column sealed. The column sealed_with names the key of the
// KMS. Searches and indexes find everything but the sensitive values. A placeholder is a JSON string with a random
// number that nobody can know beforehand, so no content of a user is taken for one.

// placeholderHead is how placeholders begin: "atoll-sealed:NUMBER:INDEX".
const placeholderHead = `"atoll-sealed:`

// sealed has the parts of a sealed document that the document with its values lacks.
type sealed struct {
	number string // of the placeholders
	values []json.RawMessage
	spec   json.RawMessage // with placeholders, as stored
	wire   []byte          // with placeholders; set by render
	column []byte          // the column sealed
	key    string          // the column sealed_with
}

// sealer encrypts and decrypts the sensitive values of documents. Many goroutines may use one. The nil sealer is that
// of a store without a KMS.
type sealer struct {
	kms    envelope.KMS
	opener *envelope.Opener
	box    atomic.Pointer[envelope.Box]
	// refused is the error, an envelope.ErrReplacedKey, for which nothing is sealed.
	refused atomic.Pointer[error]
	log     *slog.Logger
}

func newSealer(ctx context.Context, kms envelope.KMS, log *slog.Logger) (*sealer, error) {
	if kms == nil {
		return nil, nil
	}
	s := &sealer{kms: kms, opener: envelope.NewOpener(kms), log: log}
	return s, s.refresh(ctx)
}

// refresh begins to seal with the current key of the KMS.
func (s *sealer) refresh(ctx context.Context) error {
	box, err := envelope.NewBox(ctx, s.kms)
	if err != nil {
		err = fmt.Errorf("the envelope key: %w", err)
		if errors.Is(err, envelope.ErrReplacedKey) {
			s.refused.Store(&err)
		}
		return err
	}
	s.refused.Store(nil)
	if have := s.box.Load(); have == nil || have.KeyID() != box.KeyID() {
		s.opener.Remember(box)
		s.box.Store(box)
	}
	return nil
}

// sealedName is the name under which the values of a document are sealed: they open in no other document.
func sealedName(kind Kind, id string) string { return "document/" + string(kind) + "/" + id }

// sealSpec makes the sealed form of a spec that is to be stored. It returns nil if the spec has no sensitive values, or
// the store no KMS.
func (k *KindSpec) sealSpec(d Document) (*sealed, error) {
	if k.Sensitive == nil || k.sealer == nil {
		return nil, nil
	}
	spans := k.Sensitive(d.Spec)
	if len(spans) == 0 {
		return nil, nil
	}
	random := make([]byte, 16)
	rand.Read(random) // it never returns an error
	f := &sealed{number: hex.EncodeToString(random)}
	plain := append(make([]byte, 0, 1024), f.number...)
	at := 0
	for i, span := range spans {
		var value bytes.Buffer
		if err := json.Compact(&value, d.Spec[span[0]:span[1]]); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if err := checkText(value.Bytes()); err != nil { // PostgreSQL does not see the value
			return nil, err
		}
		f.values = append(f.values, value.Bytes())
		plain = append(binary.AppendUvarint(plain, uint64(value.Len())), value.Bytes()...)
		f.spec = fmt.Appendf(append(f.spec, d.Spec[at:span[0]]...), `%s%s:%d"`, placeholderHead, f.number, i)
		at = span[1]
	}
	f.spec = append(f.spec, d.Spec[at:]...)
	return f, k.sealer.seal(f, sealedName(d.Kind, d.ID), plain)
}

// seal encrypts the plain content of the column with the current key.
func (s *sealer) seal(f *sealed, name string, plain []byte) (err error) {
	if refused := s.refused.Load(); refused != nil {
		return fmt.Errorf("sealing %s: %w", name, *refused)
	}
	box := s.box.Load()
	f.key = box.KeyID()
	if f.column, err = box.Seal(name, plain); err != nil {
		return fmt.Errorf("sealing %s: %w", name, err)
	}
	return nil
}

// errDamaged is the error of a column sealed that does not open under the name of its document.
var errDamaged = errors.New("the column sealed is damaged")

// open decrypts the content of the column sealed, and returns the plain text and its parts.
func (s *sealer) open(ctx context.Context, name string, column []byte) (plain []byte, f sealed, err error) {
	if plain, err = s.opener.Open(ctx, name, column); err != nil {
		if errors.Is(err, envelope.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", errDamaged, err)
		}
		return nil, f, err
	}
	const digits = 32
	if len(plain) < digits {
		return nil, f, errDamaged
	}
	f = sealed{number: string(plain[:digits]), column: column}
	for rest := plain[digits:]; len(rest) > 0; {
		n, head := binary.Uvarint(rest)
		if head <= 0 || uint64(len(rest)-head) < n {
			return nil, f, errDamaged
		}
		f.values = append(f.values, rest[head:head+int(n)])
		rest = rest[head+int(n):]
	}
	return plain, f, nil
}

// openTimeout bounds the call of a KMS for a data key that this process has not used before.
const openTimeout = 10 * time.Second

// unseal puts the sensitive values into a document that was read with its column sealed. It returns ErrUnavailable when
// this process lacks the key. A damaged column keeps its placeholders and is logged: one document must not end a feed.
func (s *sealer) unseal(d Document, column []byte) (Document, error) {
	if column == nil {
		return d, nil
	}
	if s == nil {
		return d, fmt.Errorf("%w: %s %s is sealed, and this process has no envelope key (--envelope-key-file, "+
			"--envelope-kms)", ErrUnavailable, d.Kind, d.ID)
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	_, f, err := s.open(ctx, sealedName(d.Kind, d.ID), column)
	switch {
	case errors.Is(err, errDamaged):
		s.log.Error("the sealed values of a document cannot be opened; it keeps placeholders in their place",
			"kind", d.Kind, "id", d.ID, "error", err)
	case err != nil:
		return d, fmt.Errorf("%w: opening the sealed values: %w", ErrUnavailable, err)
	}
	f.column = column
	if mark := f.mark(); err == nil && !bytes.Contains(d.Spec, mark) && !bytes.Contains(d.Wire, mark) {
		return d, nil // a process of an earlier version has replaced the spec, and left the column
	}
	f.spec, f.wire = d.Spec, d.Wire
	d.Spec, d.Wire, d.sealed = f.fill(d.Spec), f.fill(d.Wire), &f
	return d, nil
}

// mark is how the placeholders of the document begin.
func (f *sealed) mark() []byte { return []byte(placeholderHead + f.number + ":") }

// isDamaged reports that the column sealed could not be opened.
func (f *sealed) isDamaged() bool { return f != nil && f.number == "" }

// fill returns a text with the values in the place of their placeholders; nil of nil.
func (f *sealed) fill(text []byte) []byte {
	if f.number == "" {
		return text
	}
	mark := f.mark()
	var filled []byte
	for {
		at := bytes.Index(text, mark)
		if at < 0 {
			if filled == nil {
				return text
			}
			return append(filled, text...)
		}
		index, rest, _ := bytes.Cut(text[at+len(mark):], []byte(`"`))
		i, err := strconv.Atoi(string(index))
		if err != nil || i < 0 || i >= len(f.values) {
			return append(filled, text...)
		}
		filled = append(append(filled, text[:at]...), f.values[i]...)
		text = rest
	}
}

// resealSpec makes the sealed form of a spec that replaces the one of cur. It refuses a spec with placeholders of a
// damaged column: they would be sealed in the place of the values, which the right key might still open.
func (k *KindSpec) resealSpec(cur, next Document) (*sealed, error) {
	if cur.sealed.isDamaged() {
		for _, span := range k.Sensitive(next.Spec) {
			if value := next.Spec[span[0]:span[1]]; bytes.HasPrefix(value, []byte(placeholderHead)) {
				return nil, fmt.Errorf("%w: the sealed values of %s %s cannot be opened: write them anew, all of them",
					ErrInvalid, cur.Kind, cur.ID)
			}
		}
	}
	return k.sealSpec(next)
}

// storedSpec returns the stored form of a changed spec: with placeholders when the document is sealed; nil for nil.
func (d *Document) storedSpec(spec json.RawMessage) json.RawMessage {
	if spec == nil || d.sealed == nil {
		return spec
	}
	return d.sealed.spec
}

// sealedColumns returns the contents of the columns sealed and sealed_with; null if the document has no sealed values.
func (d *Document) sealedColumns() (column, key any) {
	if d.sealed == nil {
		return nil, nil
	}
	return d.sealed.column, d.sealed.key
}

// renderSealed renders a document with its placeholders, and puts the values into the result.
func (k *KindSpec) renderSealed(d *Document) ([]byte, error) {
	form := *d.sealed // another state of the document may share it
	masked := *d
	masked.Spec, masked.Decoded = form.spec, nil
	wire, err := k.Render(masked)
	if err != nil {
		return nil, err
	}
	form.wire, d.sealed = wire, &form
	return form.fill(wire), nil
}
