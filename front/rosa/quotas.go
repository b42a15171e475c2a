package rosa

import (
	"context"
	"net/http"

	"atoll.dev/access"
	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

// The lifecycle manager counts what accounts use, in the transactions of their changes. These routes show and set the
// limits.

// listQuotas shows the quotas of the caller's account.
func (f *front) listQuotas(w http.ResponseWriter, r *http.Request) error {
	caller, _ := access.FromContext(r.Context())
	found, err := f.quotas(r.Context(), caller.Account)
	if err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, toQuotas(found))
}

// quotas reads the quotas of an account.
func (f *front) quotas(ctx context.Context, account cluster.Account) (clm.QuotaList, error) {
	if f.clm == nil {
		return clm.QuotaList{}, lifecycleUnavailable()
	}
	found, err := f.clm.Quotas(clmclient.WithTenant(ctx, account), account)
	if err != nil {
		return found, lifecycleUnavailable().Because(err)
	}
	return found, nil
}

// toQuotas gives quotas the shape of the wire.
func toQuotas(found clm.QuotaList) platform.QuotaList {
	shown := platform.QuotaList{Kind: "QuotaList", AccountID: found.Account,
		Items: make([]platform.Quota, len(found.Items))}
	for i, q := range found.Items {
		shown.Items[i] = platform.Quota{Name: q.Name, Used: q.Used, Limit: q.Limit, Default: q.Default}
	}
	return shown
}

func (f *front) getAccountQuotas(a *accountRequest) error {
	account, err := a.directory.Account(a.r.Context(), cluster.Account(a.r.PathValue("id")))
	if err != nil {
		return err
	}
	found, err := f.quotas(a.r.Context(), cluster.Account(account.ID))
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, found.Version, toQuotas(found))
}

// updateAccountQuotas sets limits of an account. The lifecycle manager checks them, and records who set them.
func (f *front) updateAccountQuotas(a *accountRequest) error {
	version, err := a.readVersion()
	if err != nil {
		return err
	}
	var body platform.QuotaRequest
	if err := a.readJSON(&body); err != nil {
		return err
	}
	account, err := a.directory.Account(a.r.Context(), cluster.Account(a.r.PathValue("id")))
	if err != nil {
		return err
	}
	if f.clm == nil {
		return lifecycleUnavailable()
	}
	found, err := f.clm.SetQuotas(a.r.Context(), cluster.Account(account.ID), body.Limits, version)
	switch remote.StatusOf(err) {
	case 0:
	case http.StatusBadRequest:
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "%s", reasonOf(err)).Because(err)
	case http.StatusPreconditionFailed:
		return replaceStatus(err, http.StatusPreconditionFailed, versionMismatch("limits of the account"))
	default:
		return lifecycleUnavailable().Because(err)
	}
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, found.Version, toQuotas(found))
}
