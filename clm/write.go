package clm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/rest"
	"atoll.dev/internal/trace"
	"atoll.dev/store"
)

// Each of these is one transaction: the resource, those that it takes with it,
// references, history. They return after the commit (I5). Who locks several
// resources locks owners before what they own.

// address is where a request finds a resource. parent is the owner that the
// path names, "" if it names none.
type address struct {
	entity *Entity
	parent string
	id     string
}

// lock locks the resource at an address and checks that the caller may see it.
func (s *Server) lock(ctx context.Context, tx *store.Tx, a address) (store.Document, error) {
	d, err := tx.GetForUpdate(ctx, a.entity.storeKind(), a.id)
	if errors.Is(err, store.ErrNotFound) {
		return d, missing(a.entity, a.id)
	}
	if err != nil {
		return d, err
	}
	return d, a.admits(ctx, d)
}

// admits checks that a document is the one at the address, and the caller's.
func (a address) admits(ctx context.Context, d store.Document) error {
	if a.parent != "" && d.Scope != a.parent {
		return missing(a.entity, a.id)
	}
	spec, err := declaredOf(d)
	if err != nil {
		return err
	}
	if !callerOf(ctx).sees(spec.Tenancy) {
		return missing(a.entity, a.id) // that it exists is nobody else's business
	}
	return nil
}

// lockOwners locks what a resource belongs to, the outermost first. Owners do
// not change, so they can be read before they are locked.
func (s *Server) lockOwners(ctx context.Context, tx *store.Tx, d store.Document) error {
	type owner struct {
		kind store.Kind
		id   string
	}
	var line []owner
	for at := d; ; {
		spec, err := declaredOf(at)
		if err != nil {
			return err
		}
		if spec.Owner == nil {
			break
		}
		line = append(line, owner{store.Kind(spec.Owner.Kind), spec.Owner.ID})
		at, err = tx.Get(ctx, store.Kind(spec.Owner.Kind), spec.Owner.ID)
		if errors.Is(err, store.ErrNotFound) {
			break // it was removed since d was read, and d with it: whoever locks d next finds that out
		}
		if err != nil {
			return err
		}
	}
	for _, o := range slices.Backward(line) {
		if _, err := tx.GetForUpdate(ctx, o.kind, o.id); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}

// newResource is what a POST asks for.
type newResource struct {
	entity *Entity
	parent string
	body   api.ResourceCreate
	key    string // Idempotency-Key
	digest []byte // of what was asked, for the key
}

// createResource makes a resource, or finds the one that the same key made
// before.
func (s *Server) createResource(ctx context.Context, req newResource) (d store.Document, err error) {
	who := callerOf(ctx)
	now := time.Now().UTC().Truncate(time.Microsecond)
	id := uuid.Must(uuid.NewV7()).String()
	if req.alone() {
		spec := req.declared(ctx, who)
		scope, err := tenancyScope(spec.Tenancy)
		if err != nil {
			return d, err
		}
		doc, err := req.entity.create(id, req.body.Name, scope, spec, now)
		if err != nil {
			return d, err
		}
		d, err = s.store.Create(ctx, doc)
		return d, req.taken(err)
	}
	if parent := req.entity.parent; parent != nil {
		release, err := s.store.WaitTurn(ctx, parent.storeKind(), req.parent)
		if err != nil {
			return d, err
		}
		defer release()
	}
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		if req.key != "" {
			known, err := s.used(ctx, tx, who, req, id)
			if err != nil || known != nil {
				if known != nil {
					d = *known
				}
				return err
			}
		}
		spec := req.declared(ctx, who)
		scope, err := s.place(ctx, tx, req, &spec)
		if err != nil {
			return err
		}
		if spec.References, err = s.resolve(ctx, tx, req.entity, req.body.References); err != nil {
			return err
		}
		doc, err := req.entity.create(id, req.body.Name, scope, spec, now)
		if err != nil {
			return err
		}
		if d, err = tx.Create(ctx, doc); err != nil {
			return req.taken(err)
		}
		return record(ctx, tx, id, spec.References)
	})
	return d, err
}

// alone says that a resource is all that is read and written when it is made:
// one statement.
func (req *newResource) alone() bool {
	return req.key == "" && req.entity.parent == nil && len(req.body.References) == 0
}

// declared is the spec of the new resource, as far as the request has it.
func (req *newResource) declared(ctx context.Context, who Caller) declared {
	spec := declared{Labels: req.body.Labels, Spec: req.body.Spec, Tenancy: who.Tenancy, CreatedBy: who.Name,
		UpdatedBy: who.Name, Traceparent: trace.Parent(ctx)}
	if spec.Labels == nil {
		spec.Labels = api.Labels{}
	}
	if spec.Tenancy == nil {
		spec.Tenancy = map[string]string{}
	}
	return spec
}

// taken makes the conflict of an error that says that there is such a resource.
func (req *newResource) taken(err error) error {
	if !errors.Is(err, store.ErrExists) {
		return err
	}
	return rest.Errorf(http.StatusConflict, codeExists, "a %s named %q already exists", req.entity.Kind,
		req.body.Name).Because(err)
}

// used finds what a key was used for. If it was not, it is from now on: for the
// resource with the given id. Who uses it at the same time waits for the end of
// the transaction.
func (s *Server) used(ctx context.Context, tx *store.Tx, who Caller, req newResource, id string) (*store.Document,
	error) {
	fail := func(err error) (*store.Document, error) {
		return nil, fmt.Errorf("looking for an idempotency key: %w", err)
	}
	// One name may be of several tenants, and where nobody has one it is of all.
	tenant, err := tenancyScope(who.Tenancy)
	if err != nil {
		return fail(err)
	}
	holder := tenant + who.Name
	tag, err := tx.Exec(
		ctx, `insert into idempotency (principal, key, digest, kind, id) values ($1, $2, $3, $4, $5) on conflict do nothing`,
		holder, req.key, req.digest, req.entity.Kind, id)
	if err != nil {
		return fail(err)
	}
	if tag.RowsAffected() > 0 {
		return nil, nil
	}
	var digest []byte
	err = tx.QueryRow(ctx, `select digest, id from idempotency where principal = $1 and key = $2`, holder,
		req.key).Scan(&digest, &id)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // it has just ended
		return fail(store.ErrConflict)
	case err != nil:
		return fail(err)
	case !bytes.Equal(digest, req.digest):
		return nil, rest.Errorf(http.StatusUnprocessableEntity, codeState,
			"this Idempotency-Key was used for another request; take a new one")
	}
	d, err := tx.Get(ctx, req.entity.storeKind(), id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, rest.Errorf(http.StatusConflict, codeState,
			"this Idempotency-Key made %s %s, which has been deleted since", req.entity.Kind, id)
	}
	return &d, err
}

// forgetKeys forgets the keys of requests that nobody repeats any more.
func (s *Server) forgetKeys(ctx context.Context, now time.Time) error {
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `delete from idempotency where created_at < $1`, now.Add(-keyMemory))
		return err
	})
}

// digestOf is what two requests have in common that ask for the same.
func digestOf(path string, body []byte) []byte {
	if v, err := jsonvalue.Decode(body); err == nil {
		if canonical, err := json.Marshal(v); err == nil {
			body = canonical
		}
	}
	sum := sha256.Sum256(append([]byte(path+"\n"), body...))
	return sum[:]
}

// place finds where a new resource belongs, and what its name is unique in.
func (s *Server) place(ctx context.Context, tx *store.Tx, req newResource, spec *declared) (scope string, err error) {
	parent := req.entity.parent
	if parent == nil {
		return tenancyScope(spec.Tenancy)
	}
	d, err := s.lock(ctx, tx, address{entity: parent, id: req.parent})
	if err != nil {
		return "", err
	}
	if d.DeletedAt != nil {
		return "", rest.Errorf(http.StatusConflict, codeState, "%s %s is being deleted; nothing can be added to it",
			parent.Kind, d.ID)
	}
	owner, err := declaredOf(d)
	if err != nil {
		return "", err
	}
	ref := parent.reference(owner.Owner, d.ID)
	spec.Owner, spec.Tenancy = &ref, owner.Tenancy
	return d.ID, nil
}

// tenancyScope is what names of resources without owner are unique in.
func tenancyScope(tenancy map[string]string) (string, error) {
	if len(tenancy) == 0 {
		return "", nil
	}
	key, err := json.Marshal(tenancy) // sorted by key
	return string(key), err
}

// resolve locks what is referred to, and completes the references.
func (s *Server) resolve(ctx context.Context, tx *store.Tx, e *Entity, wanted api.References) (api.References, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	resolved := api.References{}
	for _, refType := range slices.Sorted(maps.Keys(wanted)) {
		target := s.registry.byKind[e.rule(refType).TargetKind]
		for i, ref := range wanted[refType] {
			d, err := s.lock(ctx, tx, address{entity: target, id: ref.ID})
			if re, ok := errors.AsType[*rest.Error](err); ok && re.Status == http.StatusNotFound || err == nil &&
				d.DeletedAt != nil {
				return nil, fieldError(http.StatusBadRequest, codeValidation, fmt.Sprintf("references.%s[%d].id",
					refType, i), "exists",
					fmt.Sprintf("names no %s: %s", target.Kind, shorten(ref.ID)))
			}
			if err != nil {
				return nil, err
			}
			spec, err := declaredOf(d)
			if err != nil {
				return nil, err
			}
			resolved[refType] = append(resolved[refType], target.reference(spec.Owner, d.ID))
		}
	}
	return resolved, nil
}

// refer records what a resource refers to, and nothing else.
func refer(ctx context.Context, tx *store.Tx, id string, references api.References) error {
	if _, err := tx.Exec(ctx, `delete from reference where source = $1`, id); err != nil {
		return fmt.Errorf("recording references of %s: %w", id, err)
	}
	return record(ctx, tx, id, references)
}

// record is refer for a resource of which nothing is recorded yet.
func record(ctx context.Context, tx *store.Tx, id string, references api.References) error {
	for refType, targets := range references {
		for _, t := range targets {
			if _, err := tx.Exec(ctx, `insert into reference (source, type, target) values ($1, $2, $3)`, id, refType,
				t.ID); err != nil {
				return fmt.Errorf("recording references of %s: %w", id, err)
			}
		}
	}
	return nil
}

// errTogether: the change is not of one resource alone, so it takes a
// transaction.
var errTogether = errors.New("other resources are concerned")

// patchResource changes a resource. wanted makes the change from what is stored.
func (s *Server) patchResource(ctx context.Context, a address, ifVersion int64, wanted func(declared) (change, error)) (
	d store.Document, err error) {
	by, now := authorOf(ctx), time.Now().UTC().Truncate(time.Microsecond)
	d, _, err = s.store.Update(ctx, a.entity.storeKind(), a.id, 0, func(d *store.Document) error {
		if err := decode(d); err != nil {
			return err
		}
		c, err := a.changes(ctx, *d, ifVersion, wanted)
		if err != nil {
			return err
		}
		if c.references != nil {
			return errTogether
		}
		return a.entity.patch(d, c, by, now)
	})
	if errors.Is(err, store.ErrNotFound) {
		return d, missing(a.entity, a.id)
	}
	if !errors.Is(err, errTogether) {
		return d, err
	}
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		have, err := s.lock(ctx, tx, a)
		if err != nil {
			return err
		}
		c, err := a.changes(ctx, have, ifVersion, wanted)
		if err != nil {
			return err
		}
		if c.references, err = s.resolve(ctx, tx, a.entity, c.references); err != nil {
			return err
		}
		if c.references == nil {
			c.references = api.References{}
		}
		changed := false
		if d, changed, err = tx.Update(ctx, a.entity.storeKind(), a.id, 0, func(d *store.Document) error {
			return a.entity.patch(d, c, by, now)
		}); err != nil || !changed {
			return err
		}
		return refer(ctx, tx, a.id, c.references)
	})
	return d, err
}

// changes are those that a PATCH wants of what is stored, if the caller may see
// it and it has the version that the PATCH insists on.
func (a address) changes(ctx context.Context, d store.Document, ifVersion int64, wanted func(declared) (change,
	error)) (change, error) {
	if err := a.admits(ctx, d); err != nil {
		return change{}, err
	}
	if err := insists(d, ifVersion); err != nil {
		return change{}, err
	}
	spec, err := declaredOf(d)
	if err != nil {
		return change{}, err
	}
	return wanted(spec)
}

// insists refuses a write that names another version than the stored one; 0
// names none.
func insists(d store.Document, version int64) error {
	if version == 0 || version == d.Version {
		return nil
	}
	return &store.StaleError{Kind: d.Kind, ID: d.ID, Asked: version, Latest: d.Version, Current: d}
}

// takeReport takes an adapter's report, and removes the resource if that
// completes its deletion.
func (s *Server) takeReport(ctx context.Context, a address, ifVersion int64, r status.Report, tie status.Tie) (
	out reported, err error) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	d, err := s.store.Get(ctx, a.entity.storeKind(), a.id)
	if errors.Is(err, store.ErrNotFound) {
		return out, missing(a.entity, a.id)
	}
	if err != nil {
		return out, err
	}
	if err := decode(&d); err != nil {
		return out, err
	}
	if err := a.admits(ctx, d); err != nil {
		return out, err
	}
	if d.DeletedAt != nil {
		return s.takeLast(ctx, a, d, ifVersion, r, tie, now)
	}
	if err := insists(d, ifVersion); err != nil {
		return out, err
	}
	// A report that changes nothing is answered by what was read.
	next := d
	if out, err = a.entity.take(&next, r, tie, false, now); err != nil || out.verdict == status.Discarded ||
		out.verdict == status.Repeated {
		return out, err
	}
	_, _, err = s.store.UpdateFrom(ctx, d, func(latest *store.Document) (err error) {
		switch {
		case latest.SameState(d):
			*latest = next
		case latest.DeletedAt != nil:
			return errTogether
		default:
			if err := insists(*latest, ifVersion); err != nil {
				return err
			}
			out, err = a.entity.take(latest, r, tie, false, now)
		}
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return out, missing(a.entity, a.id)
	case errors.Is(err, errTogether):
		return s.takeLast(ctx, a, d, ifVersion, r, tie, now)
	}
	return out, err
}

// takeLast takes a report on a resource that is being deleted, as it was read
// before. It may be the last one: the resource goes, and owners that waited for
// it go with it.
func (s *Server) takeLast(ctx context.Context, a address, read store.Document, ifVersion int64, r status.Report,
	tie status.Tie, now time.Time) (out reported, err error) {
	// All that belongs to one owner is often reported gone at once.
	kind, id := a.entity.storeKind(), a.id
	if a.entity.parent != nil {
		kind, id = a.entity.parent.storeKind(), read.Scope
	}
	release, err := s.store.WaitTurn(ctx, kind, id)
	if err != nil {
		return out, err
	}
	defer release()
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		d, err := tx.Get(ctx, a.entity.storeKind(), a.id)
		if errors.Is(err, store.ErrNotFound) {
			return missing(a.entity, a.id)
		}
		if err != nil {
			return err
		}
		if err := s.lockOwners(ctx, tx, d); err != nil {
			return err
		}
		// Until it is locked, another process may be removing its last child, and find it waiting for this report.
		if d, err = s.lock(ctx, tx, a); err != nil {
			return err
		}
		if err := insists(d, ifVersion); err != nil {
			return err
		}
		children, err := s.present(ctx, tx, a.entity, a.id)
		if err != nil {
			return err
		}
		d, _, err = tx.Update(ctx, a.entity.storeKind(), a.id, 0, func(d *store.Document) (err error) {
			out, err = a.entity.take(d, r, tie, children, now)
			return err
		})
		if err != nil || !out.done {
			return err
		}
		return s.remove(ctx, tx, a.entity, d)
	})
	return out, err
}

// present says whether a resource has children, also such that are being
// deleted.
func (s *Server) present(ctx context.Context, tx *store.Tx, e *Entity, id string) (bool, error) {
	for _, kind := range e.children {
		docs, err := tx.ListScope(ctx, kind.storeKind(), id)
		if err != nil || len(docs) > 0 {
			return len(docs) > 0, err
		}
	}
	return false, nil
}

// remove ends a resource, and those of its owners that waited only for it.
func (s *Server) remove(ctx context.Context, tx *store.Tx, e *Entity, d store.Document) error {
	if err := tx.Remove(ctx, e.storeKind(), d.ID, 0); err != nil {
		return err
	}
	if err := refer(ctx, tx, d.ID, nil); err != nil {
		return err
	}
	spec, err := declaredOf(d)
	if err != nil || spec.Owner == nil {
		return err
	}
	return s.childGone(ctx, tx, e.parent, spec.Owner.ID)
}

func (s *Server) childGone(ctx context.Context, tx *store.Tx, owner *Entity, id string) error {
	d, err := tx.GetForUpdate(ctx, owner.storeKind(), id)
	if errors.Is(err, store.ErrNotFound) || err == nil && d.DeletedAt == nil {
		return nil
	}
	if err != nil {
		return err
	}
	children, err := s.present(ctx, tx, owner, id)
	if err != nil {
		return err
	}
	done := false
	if d, _, err = tx.Update(ctx, owner.storeKind(), id, 0, func(d *store.Document) (err error) {
		done, err = owner.reconsider(d, children)
		return err
	}); err != nil || !done {
		return err
	}
	return s.remove(ctx, tx, owner, d)
}
