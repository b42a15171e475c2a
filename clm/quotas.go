package clm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	api "atoll.dev/api/clm"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Names of quotas.
const (
	QuotaClusters  = "clusters"
	QuotaNodePools = "node_pools"
	// QuotaNodes is of the nodes that node pools can have: their replicas, or the maximum of their autoscaling.
	QuotaNodes = "nodes"
	// QuotaWorks is of the ManifestWorks that the region's adapters make: two for a cluster, one for a node pool and
	// for a credential.
	QuotaWorks = "works"
)

// quotaNames are the quotas in the order of the arrays of the table quota; add only to the end.
var quotaNames = []string{QuotaClusters, QuotaNodePools, QuotaNodes, QuotaWorks}

// maxQuota is the highest limit.
const maxQuota = 1_000_000_000

// DefaultQuotas returns the limits of an account if the configuration has no others.
func DefaultQuotas() map[string]int64 {
	return map[string]int64{QuotaClusters: 1000, QuotaNodePools: 5000, QuotaNodes: 50_000, QuotaWorks: 20_000}
}

// quotaKind is the kind of the limits that operators have set for an account. The id of such a document is the
// account; its spec is an accountQuotas. The history has who set which limit, and the audit as well.
var quotaKind = store.KindSpec{Kind: "Quota", History: true, Owner: func(d store.Document) string { return d.ID }}

// accountQuotas is the spec of a document of quotaKind.
type accountQuotas struct {
	Limits map[string]int64 `json:"limits"` // a quota without a limit here has the default
}

// isCounted reports whether quotas count resources of a kind.
func isCounted(e *Entity) bool {
	return e.Kind == "Cluster" || e.Kind == "NodePool" || e.Kind == "Credential"
}

// checkQuota checks a name and a limit.
func checkQuota(name string, limit int64) error {
	switch {
	case !slices.Contains(quotaNames, name):
		return fmt.Errorf("is unknown; possible: %s", strings.Join(quotaNames, ", "))
	case limit < 0 || limit > maxQuota:
		return fmt.Errorf("must be from 0 to %d", maxQuota)
	}
	return nil
}

// quotaAccount returns the account of the path. A tenant may name its own account only.
func quotaAccount(r *http.Request) (cluster.Account, error) {
	account := r.PathValue("account")
	if !tenantValue.MatchString(account) {
		return "", rest.Errorf(http.StatusBadRequest, codeBadRequest, "an account has 1 to 63 letters, digits, dots, "+
			"dashes and underscores")
	}
	if c := callerOf(r.Context()); c.Tenancy != nil && c.Tenancy["account"] != account {
		return "", rest.Errorf(http.StatusForbidden, codeForbidden, "these are the quotas of another account")
	}
	return cluster.Account(account), nil
}

func (s *Server) getQuotas(w http.ResponseWriter, r *http.Request) error {
	account, err := quotaAccount(r)
	if err != nil {
		return err
	}
	return s.writeQuotas(w, r, account)
}

// writeQuotas answers with the limits and the use of an account. An account without resources and own limits has the
// default limits and no use.
func (s *Server) writeQuotas(w http.ResponseWriter, r *http.Request, account cluster.Account) error {
	d, err := s.store.Get(r.Context(), quotaKind.Kind, string(account))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	used, most, usual, err := s.readQuotas(r.Context(), account)
	if err != nil {
		return err
	}
	answer := api.QuotaList{Kind: "QuotaList", Account: string(account), Version: d.Version,
		Items: make([]api.Quota, len(quotaNames))}
	for i, name := range quotaNames {
		answer.Items[i] = api.Quota{Name: name, Used: used[i], Limit: cmp.Or(most[i], usual[i]), Default: usual[i]}
	}
	return rest.WriteJSON(w, http.StatusOK, answer)
}

// patchQuotas sets limits of an account. The answer has all quotas.
func (s *Server) patchQuotas(w http.ResponseWriter, r *http.Request) error {
	account, err := quotaAccount(r)
	if err != nil {
		return err
	}
	version, err := ifMatch(r)
	if err != nil {
		return err
	}
	var patch api.QuotaPatch
	if err := rest.ReadJSON(r, maxBody, &patch); err != nil {
		return err
	}
	var fields []rest.FieldError
	for name, limit := range patch.Limits {
		var n int64
		if limit != nil {
			n = *limit
		}
		if err := checkQuota(name, n); err != nil {
			fields = append(fields, rest.FieldError{Field: "limits." + shorten(name), Constraint: "enum",
				Message: err.Error()})
		}
	}
	slices.SortFunc(fields, func(a, b rest.FieldError) int { return strings.Compare(a.Field, b.Field) })
	if len(patch.Limits) == 0 {
		fields = append(fields, rest.FieldError{Field: "limits", Constraint: "required", Message: "is required"})
	}
	if err := fieldErrors(fields); err != nil {
		return err
	}
	if err := s.changeQuotas(r.Context(), account, version, patch.Limits); err != nil {
		return err
	}
	return s.writeQuotas(w, r, account)
}

// changeQuotas changes an account's limits; nil is the default.
func (s *Server) changeQuotas(ctx context.Context, account cluster.Account, ifVersion int64,
	limits map[string]*int64) error {
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.GetForUpdate(ctx, quotaKind.Kind, string(account))
		if errors.Is(err, store.ErrNotFound) && ifVersion == 0 {
			spec := accountQuotas{Limits: map[string]int64{}}.changed(limits)
			if _, err := tx.Create(ctx, store.Document{Kind: quotaKind.Kind, ID: string(account),
				Spec: raw(spec)}); err != nil {
				if errors.Is(err, store.ErrExists) {
					err = store.ErrConflict // another request has just created it
				}
				return err
			}
			return setLimits(ctx, tx, account, spec.Limits)
		}
		if errors.Is(err, store.ErrNotFound) {
			err = store.ErrStale // there are no limits of any version
		}
		if err != nil {
			return err
		}
		var spec accountQuotas
		if _, _, err := tx.Update(ctx, quotaKind.Kind, string(account), ifVersion, func(d *store.Document) error {
			if err := json.Unmarshal(d.Spec, &spec); err != nil {
				return err
			}
			spec = spec.changed(limits)
			d.Spec = raw(spec)
			return nil
		}); err != nil {
			return err
		}
		return setLimits(ctx, tx, account, spec.Limits)
	})
}

// changed returns the limits after a patch; nil is the default.
func (q accountQuotas) changed(limits map[string]*int64) accountQuotas {
	next := accountQuotas{Limits: map[string]int64{}}
	for _, name := range quotaNames {
		limit, isGiven := limits[name]
		before, had := q.Limits[name]
		switch {
		case isGiven && limit != nil:
			next.Limits[name] = *limit
		case !isGiven && had:
			next.Limits[name] = before
		}
	}
	return next
}
