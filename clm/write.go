package clm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/rest"
	"atoll.dev/internal/trace"
	"atoll.dev/store"
)

// Each of these functions is one transaction for the resource, related resources,
// references and history. They return after the commit (I5). A transaction that locks
// several resources locks owners before the resources below them.

// address names the resource of a request. parent is the owner in the path, "" if the path
// has none.
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

// admits returns a 404 if a document is not below the address's owner, or if the caller
// may not see it.
func (a address) admits(ctx context.Context, d store.Document) error {
	if a.parent != "" && d.Scope != a.parent {
		return missing(a.entity, a.id)
	}
	spec, err := declaredOf(d)
	if err != nil {
		return err
	}
	if !callerOf(ctx).sees(spec.Tenancy) {
		return missing(a.entity, a.id) // other tenants must not learn that the resource exists
	}
	return nil
}

// lockOwners locks the owners of a resource, the outermost first. The owner of a resource
// never changes, so that lockOwners can read all owners before it locks them.
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
			break // the owner and d were removed since d was read; the caller's next lock of d fails
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

// newResource is the request of a POST.
type newResource struct {
	entity *Entity
	parent string
	body   api.ResourceCreate
	key    string // Idempotency-Key
	digest []byte // of the request, for the key
}

// createResource creates a resource, or returns the one that an earlier request with the
// same idempotency key has created.
func (s *Server) createResource(ctx context.Context, req newResource) (d store.Document, err error) {
	caller := callerOf(ctx)
	now := time.Now().UTC().Truncate(time.Microsecond)
	id := uuid.Must(uuid.NewV7()).String()
	if parent := req.entity.parent; parent != nil {
		release, err := s.store.WaitTurn(ctx, parent.storeKind(), req.parent)
		if err != nil {
			return d, err
		}
		defer release()
	}
	if account := caller.Tenancy["account"]; account != "" && isCounted(req.entity) {
		// PostgreSQL lets one transaction at a time change the account's use. The others wait here, without a connection.
		release, err := s.store.WaitTurn(ctx, quotaKind.Kind, account)
		if err != nil {
			return d, err
		}
		defer release()
	}
	if req.isIndependent() {
		spec := req.declared(ctx, caller)
		scope, err := tenancyScope(spec.Tenancy)
		if err != nil {
			return d, err
		}
		doc, err := req.entity.create(id, req.body.Name, scope, spec, now)
		if err != nil {
			return d, err
		}
		if d, err = s.store.Create(ctx, doc); err == nil {
			s.recent.put(d)
		}
		return d, req.nameConflict(err)
	}
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		if req.key != "" {
			known, err := s.useKey(ctx, tx, caller, req, id)
			if err != nil || known != nil {
				if known != nil {
					d = *known
				}
				return err
			}
		}
		spec := req.declared(ctx, caller)
		scope, err := s.setOwner(ctx, tx, req, &spec)
		if err != nil {
			return err
		}
		if spec.References, err = s.resolveReferences(ctx, tx, req.entity, req.body.References); err != nil {
			return err
		}
		doc, err := req.entity.create(id, req.body.Name, scope, spec, now)
		if err != nil {
			return err
		}
		if d, err = tx.Create(ctx, doc); err != nil {
			return req.nameConflict(err)
		}
		return insertReferences(ctx, tx, id, spec.References)
	})
	if err == nil {
		s.recent.put(d)
	}
	return d, err
}

// isIndependent reports whether the creation reads and writes no other resource and no key,
// so that it is one statement.
func (req *newResource) isIndependent() bool {
	return req.key == "" && req.entity.parent == nil && len(req.body.References) == 0
}

// declared returns the spec of the new resource, without owner and resolved references.
func (req *newResource) declared(ctx context.Context, caller Caller) declared {
	spec := declared{Labels: req.body.Labels, Spec: req.body.Spec, Tenancy: caller.Tenancy, CreatedBy: caller.Name,
		UpdatedBy: caller.Name, Traceparent: trace.Parent(ctx)}
	if spec.Labels == nil {
		spec.Labels = api.Labels{}
	}
	if spec.Tenancy == nil {
		spec.Tenancy = map[string]string{}
	}
	return spec
}

// nameConflict returns the conflict for the store's error that a resource of that name
// exists; it returns other errors unchanged.
func (req *newResource) nameConflict(err error) error {
	if !errors.Is(err, store.ErrExists) {
		return err
	}
	return rest.Errorf(http.StatusConflict, codeExists, "a %s named %q already exists", req.entity.Kind,
		req.body.Name).Because(err)
}

// useKey returns the resource that an earlier request with the idempotency key has created.
// If there was none, it records the key for the given id and returns nil. Another request
// with the key waits until the transaction ends.
func (s *Server) useKey(ctx context.Context, tx *store.Tx, caller Caller, req newResource, id string) (*store.Document,
	error) {
	fail := func(err error) (*store.Document, error) {
		return nil, fmt.Errorf("looking for an idempotency key: %w", err)
	}
	// Callers of different tenants may have one name, so the tenancy is a part of the principal.
	tenant, err := tenancyScope(caller.Tenancy)
	if err != nil {
		return fail(err)
	}
	holder := tenant + caller.Name
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
	case errors.Is(err, pgx.ErrNoRows): // forgetKeys has just deleted the key
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

// forgetKeys deletes the idempotency keys of requests that are older than keyMemory.
func (s *Server) forgetKeys(ctx context.Context, now time.Time) error {
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `delete from idempotency where created_at < $1`, now.Add(-keyMemory))
		return err
	})
}

// digestOf returns a hash that is equal for requests with the same path and JSON body.
func digestOf(path string, body []byte) []byte {
	if v, err := jsonvalue.Decode(body); err == nil {
		if canonical, err := json.Marshal(v); err == nil {
			body = canonical
		}
	}
	sum := sha256.Sum256(append([]byte(path+"\n"), body...))
	return sum[:]
}

// setOwner sets owner and tenancy of a new resource's spec, and returns the scope in which
// its name is unique.
func (s *Server) setOwner(ctx context.Context, tx *store.Tx, req newResource, spec *declared) (scope string,
	err error) {
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

// tenancyScope returns the scope in which names of resources without owner are unique.
func tenancyScope(tenancy map[string]string) (string, error) {
	if len(tenancy) == 0 {
		return "", nil
	}
	key, err := json.Marshal(tenancy) // sorted by key
	return string(key), err
}

// errNeedsTransaction stops an update of one document whose change concerns other
// resources, too; the caller repeats it in a transaction.
var errNeedsTransaction = errors.New("the change concerns other resources")

// patchResource changes a resource. wanted computes the change from the stored spec; it
// may be called several times.
func (s *Server) patchResource(ctx context.Context, a address, ifVersion int64, wanted func(declared) (change, error)) (
	d store.Document, err error) {
	by, now := authorOf(ctx), time.Now().UTC().Truncate(time.Microsecond)
	d, _, err = s.store.Update(ctx, a.entity.storeKind(), a.id, 0, func(d *store.Document) error {
		c, err := a.changeOf(ctx, *d, ifVersion, wanted)
		if err != nil {
			return err
		}
		if c.references != nil {
			return errNeedsTransaction
		}
		return a.entity.patch(d, c, by, now)
	})
	if errors.Is(err, store.ErrNotFound) {
		return d, missing(a.entity, a.id)
	}
	if err == nil {
		s.recent.put(d)
	}
	if !errors.Is(err, errNeedsTransaction) {
		return d, err
	}
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		have, err := s.lock(ctx, tx, a)
		if err != nil {
			return err
		}
		c, err := a.changeOf(ctx, have, ifVersion, wanted)
		if err != nil {
			return err
		}
		if c.references, err = s.resolveReferences(ctx, tx, a.entity, c.references); err != nil {
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
		return replaceReferences(ctx, tx, a.id, c.references)
	})
	if err == nil {
		s.recent.put(d)
	}
	return d, err
}

// changeOf returns the change that a PATCH makes to a stored document. It is an error if
// the caller may not see the document, or if the PATCH requires another version.
func (a address) changeOf(ctx context.Context, d store.Document, ifVersion int64, wanted func(declared) (change,
	error)) (change, error) {
	if err := a.admits(ctx, d); err != nil {
		return change{}, err
	}
	if err := checkVersion(d, ifVersion); err != nil {
		return change{}, err
	}
	spec, err := declaredOf(d)
	if err != nil {
		return change{}, err
	}
	return wanted(spec)
}

// checkVersion returns a StaleError if a write requires another version than the stored
// one; 0 requires none.
func checkVersion(d store.Document, version int64) error {
	if version == 0 || version == d.Version {
		return nil
	}
	return &store.StaleError{Kind: d.Kind, ID: d.ID, Asked: version, Latest: d.Version, Current: d}
}
