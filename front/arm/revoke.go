package arm

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// revocationPause is the Retry-After of a request that is refused while a revocation runs.
const revocationPause = 10 * time.Second

// revocationKey returns the operation key of the revocation of a cluster's credentials. It differs from the
// key of the cluster, so that the cluster can have another operation at the same time.
func revocationKey(r resource) string { return r.id + "/credentials" }

// withRetryAfter sets the Retry-After of an answer.
func withRetryAfter(after time.Duration, e *rest.Error) error {
	e.RetryAfter = after
	return e
}

// lockCluster locks a cluster until the transaction ends, and refuses a request about its credentials
// unless the cluster is Succeeded, Updating or Failed.
func lockCluster(ctx context.Context, tx *store.Tx, r resource, what string) error {
	d, err := tx.GetForUpdate(ctx, kindCluster, r.id)
	if err != nil {
		return err
	}
	now, err := toResource(d)
	if err != nil {
		return err
	}
	if state := now.status.State; state != stateSucceeded && state != stateUpdating && state != stateFailed {
		return conflict(r.spec.Path, "Cannot %s while resource is %q", what, strings.ToLower(state))
	}
	return nil
}

// revokeCredentials accepts the revocation of all certificates that were signed for administrators of a
// cluster, also of those that the account has requested at the Platform API. No credential can be requested
// until the revocation ends.
func (f *front) revokeCredentials(x *exchange) error {
	if err := x.subscription.checkState(x.r.Method); err != nil {
		return err
	}
	r := x.resource
	if r == nil {
		return f.notFound(x, kindCluster)
	}
	of := policy.Resource{Kind: policy.Credential, Account: r.spec.Account, Cluster: r.status.Resource,
		Tags: policyTags(r.spec.Tags)}
	if err := access.AuthorityFrom(x.r.Context()).Check(x.r.Context(), "DeleteCredential", of); err != nil {
		return err
	}
	var op ops.State
	err := f.store.Tx(x.ctx, func(tx *store.Tx) (err error) {
		if err := lockCluster(x.ctx, tx, *r, "revoke credentials"); err != nil {
			return err
		}
		op, err = f.engine.Begin(x.ctx, tx, f.newOrder(x, *r, requestRevoke, nil))
		return err
	})
	if _, isBusy := errors.AsType[*ops.BusyError](err); isBusy {
		return withRetryAfter(revocationPause, conflict(r.spec.Path, "Credentials are already being revoked"))
	}
	if err != nil {
		return err
	}
	return f.writeAccepted(x, http.StatusAccepted, op, nil)
}

// revoke cancels the requests for credentials of a cluster, deletes the Credentials that the lifecycle manager has,
// and waits until none is left: the management cluster has then removed their rights.
func (f *front) revoke(ctx context.Context, p parameters) ops.Outcome {
	of, err := f.loadDocument(ctx, kindCluster, p.Document)
	if errors.Is(err, store.ErrNotFound) || err == nil && of.status.Resource == "" {
		return ops.Outcome{Event: ops.Event{Kind: ops.Succeed}} // no cluster, no credential
	}
	if err != nil {
		return failureOutcome(err)
	}
	why := &ops.Error{Code: codeCanceled, Message: "The credentials of the cluster were revoked."}
	if err := f.engine.EachActive(ctx, of.scope, func(s ops.State) error {
		if request, err := parametersOf(s); err != nil || s.Request != requestCredential || request.Document != of.id {
			return err
		}
		_, err := f.engine.Cancel(ctx, s.ID, why)
		if errors.Is(err, ops.ErrEnded) {
			return nil
		}
		return err
	}); err != nil {
		return failureOutcome(err)
	}
	left := 0
	for r, err := range f.clm.All(ctx, clusters.Below(of.status.Resource, credentials), clmclient.ResourceQuery{
		Order: "created_time asc"}) {
		if remote.StatusOf(err) == http.StatusNotFound {
			break // the cluster is gone
		}
		if err != nil {
			return failureOutcome(err)
		}
		left++
		if r.DeletedTime != nil {
			continue
		}
		if _, err := f.clm.Delete(ctx, credentials, r.ID, ""); err != nil && remote.StatusOf(err) != http.StatusNotFound {
			return failureOutcome(err)
		}
	}
	if left == 0 {
		return ops.Outcome{Event: ops.Event{Kind: ops.Succeed}}
	}
	return ops.Outcome{Event: ops.Event{Kind: ops.Progress, Phase: "Revoking", Percent: 50}, Again: time.Second}
}

// deleteCanceled deletes a Credential whose operation was canceled: its worker created it after the revocation that
// canceled the operation had listed the Credentials.
func (f *front) deleteCanceled(ctx context.Context, r clmclient.Resource, operation string) error {
	s, err := f.engine.Get(ctx, operation)
	if errors.Is(err, store.ErrNotFound) || err == nil && s.Status != ops.Canceled {
		return nil
	}
	if err != nil {
		return err
	}
	account := cluster.Account(r.Tenancy["account"])
	ctx = remote.WithActor(clmclient.WithTenant(ctx, account), remote.Actor{
		Principal: string(principalOf(account, "")), Account: string(account), RequestID: operation})
	if _, err := f.clm.Delete(ctx, credentials, r.ID, ""); remote.StatusOf(err) != http.StatusNotFound {
		return err
	}
	return nil
}
