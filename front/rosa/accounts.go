package rosa

import (
	"errors"
	"net/http"
	"strconv"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Codes of errors of accounts and policies.
const (
	codeNoDirectory   = "authorization-unavailable"
	codeAccountExists = "account-exists"
	codeAccountInUse  = "account-in-use"
	codeExists        = "already-exists"
	codePolicyInUse   = "policy-in-use"
	codeGroupInUse    = "group-in-use"
	codeLastAdmin     = "last-admin"
	codeTooManyOf     = "too-many"
	codeInvalidPolicy = "invalid-policy"
	codeLinked        = "identity-linked"
)

// accountRequest is one request to the routes of accounts and policies.
type accountRequest struct {
	w         http.ResponseWriter
	r         *http.Request
	caller    access.Identity
	account   cluster.Account // that the request is about: the caller's, or that of accountId
	directory *access.Directory
}

// accounts makes the handler of a route of accounts or policies. The Router has decided whether the
// caller may name another account.
func (f *front) accounts(serve func(*accountRequest) error) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if f.directory == nil {
			return directoryUnavailable(errors.New("the region has none"))
		}
		caller, _ := access.FromContext(r.Context())
		a := &accountRequest{w: w, r: r, caller: caller, account: caller.Account, directory: f.directory}
		switch others := r.URL.Query()[administer.Parameter]; {
		case len(others) > 1:
			return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "accountId is given more than once; give it once")
		case len(others) == 1 && !access.IsAccountID(others[0]):
			return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "accountId is not 12 digits")
		case len(others) == 1:
			a.account = cluster.Account(others[0])
		}
		r = r.WithContext(store.WithActor(r.Context(), store.Actor{
			Principal: string(caller.Principal), Account: string(caller.Account), RequestID: rest.OperationID(r.Context()),
			Audit: remote.ActorOf(r.Context()).Audit,
		}))
		a.r = r
		return a.translate(serve(a))
	}
}

func directoryUnavailable(err error) *rest.Error {
	e := rest.Errorf(http.StatusServiceUnavailable, codeNoDirectory,
		"the database of accounts and policies does not answer; try again").Because(err)
	e.RetryAfter = 1e9
	return e
}

// translate gives an error of the Directory the answer of this API.
func (a *accountRequest) translate(err error) error {
	answer := func(status int, code, reason string) error {
		return rest.Errorf(status, code, "%s", reason).Because(err)
	}
	if err == nil {
		return nil
	}
	if _, isAnswer := errors.AsType[*rest.Error](err); isAnswer {
		return err
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return answer(http.StatusNotFound, codeNotFound,
			"the account has no document of that id; GET its collection to see which it has")
	case errors.Is(err, access.ErrNoTarget):
		return answer(http.StatusNotFound, codeNotFound, "the account has no such policy or group")
	case errors.Is(err, store.ErrExists):
		return answer(http.StatusConflict, codeExists, "it already exists")
	case errors.Is(err, store.ErrStale):
		return answer(http.StatusPreconditionFailed, codePrecondition,
			"the document has changed since the version in If-Match; GET it, and decide again")
	case errors.Is(err, access.ErrPolicyInUse):
		return answer(http.StatusConflict, codePolicyInUse, "the policy is attached; delete its attachments first")
	case errors.Is(err, access.ErrGroupInUse):
		return answer(http.StatusConflict, codeGroupInUse,
			"a policy is attached to the group; delete its attachments first")
	case errors.Is(err, access.ErrLastAdmin):
		return answer(http.StatusConflict, codeLastAdmin, "it is the last administrator of a privileged account, "+
			"whose principals could then do everything; make another one first")
	case errors.Is(err, access.ErrLinked):
		return answer(http.StatusConflict, codeLinked,
			"the identity is linked already; atoll whoami shows to which principal")
	case errors.Is(err, access.ErrInvalidLinkCode):
		return answer(http.StatusForbidden, string(access.InvalidLinkCode), access.ErrInvalidLinkCode.Error())
	case errors.Is(err, access.ErrTooMany):
		return answer(http.StatusConflict, codeTooManyOf, err.Error())
	case errors.Is(err, access.ErrInvalid), errors.Is(err, store.ErrInvalid):
		return answer(http.StatusBadRequest, rest.CodeInvalid, err.Error())
	}
	return directoryUnavailable(err)
}

// readJSON reads the body of the request.
func (a *accountRequest) readJSON(into any) error {
	body, err := rest.ReadBody(a.r, 256<<10)
	if err != nil {
		return err
	}
	return rest.DecodeJSON(body, into)
}

// readWindow reads limit and offset.
func (a *accountRequest) readWindow() (access.Window, error) {
	c := exchange{r: a.r, area: "AUTHZ-LIST"}
	limit, offset, err := c.readPageBounds()
	return access.Window{Limit: limit, Offset: offset}, err
}

// readVersion reads the version of If-Match; 0 for any.
func (a *accountRequest) readVersion() (int64, error) {
	etag, err := readIfMatch(a.r)
	if err != nil || etag == "" {
		return 0, err
	}
	text, err := strconv.Unquote(etag)
	if err != nil {
		return 0, rest.Errorf(http.StatusPreconditionFailed, codePrecondition, "If-Match is not an ETag of this API")
	}
	version, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, rest.Errorf(http.StatusPreconditionFailed, codePrecondition, "If-Match is not an ETag of this API")
	}
	return version, nil
}

// write answers with a document of a version; 0 for none.
func (a *accountRequest) write(status int, version int64, v any) error {
	if version > 0 {
		a.w.Header().Set("Etag", rest.ETag(version))
	}
	return rest.WriteJSON(a.w, status, v)
}

// created answers with a new document.
func (a *accountRequest) created(id string, version int64, v any) error {
	a.w.Header().Set("Location", a.r.URL.Path+"/"+id)
	return a.write(http.StatusCreated, version, v)
}

func (a *accountRequest) noContent(err error) error {
	if err == nil {
		a.w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// whoAmI answers with the account, principal and rights of the caller.
func (f *front) whoAmI(w http.ResponseWriter, r *http.Request) error {
	caller, _ := access.FromContext(r.Context())
	shown := platform.Caller{Kind: "Caller", AccountID: string(caller.Account), PrincipalArn: string(caller.Principal),
		Privileged: caller.Privileged, Groups: []string{}}
	if f.directory != nil {
		known := f.directory.Caller(caller.Account, caller.Principal)
		shown.Provisioned, shown.Admin = known.IsProvisioned, known.IsAdmin
		shown.Groups = append(shown.Groups, known.Groups...)
	}
	return rest.WriteJSON(w, http.StatusOK, shown)
}

func toAccount(d access.AccountDocument) platform.Account {
	return platform.Account{Kind: "Account", AccountID: d.ID, Privileged: d.Privileged, CreatedAt: d.CreatedAt,
		CreatedBy: d.CreatedBy}
}

func (f *front) createAccount(a *accountRequest) error {
	var body platform.AccountRequest
	if err := a.readJSON(&body); err != nil {
		return err
	}
	if body.Privileged {
		err := access.AuthorityFrom(a.r.Context()).Check(a.r.Context(), "CreatePrivilegedAccount",
			policy.Resource{Kind: policy.Region})
		if err != nil {
			return err
		}
	}
	made, err := a.directory.CreateAccount(a.r.Context(), access.Account{ID: cluster.Account(body.AccountID),
		Privileged: body.Privileged})
	if errors.Is(err, store.ErrExists) {
		return rest.Errorf(http.StatusConflict, codeAccountExists, "the account %s already exists", body.AccountID)
	}
	if err != nil {
		return err
	}
	return a.created(made.ID, made.Version, toAccount(made))
}

func (f *front) listAccounts(a *accountRequest) error {
	w, err := a.readWindow()
	if err != nil {
		return err
	}
	found, total, err := a.directory.Accounts(a.r.Context(), w)
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, 0, platform.AccountList{Kind: "AccountList", Items: convertAll(found, toAccount),
		Total: total, Limit: w.Limit, Offset: w.Offset})
}

// convertAll gives documents the shape of the wire.
func convertAll[D, T any](documents []D, show func(D) T) []T {
	items := make([]T, 0, len(documents))
	for _, d := range documents {
		items = append(items, show(d))
	}
	return items
}

func (f *front) getAccount(a *accountRequest) error {
	found, err := a.directory.Account(a.r.Context(), cluster.Account(a.r.PathValue("id")))
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, found.Version, toAccount(found))
}

// deleteAccount refuses to delete the caller's own account, and one that has clusters.
func (f *front) deleteAccount(a *accountRequest) error {
	id := a.r.PathValue("id")
	version, err := a.readVersion()
	if err != nil {
		return err
	}
	if _, err := a.directory.Account(a.r.Context(), cluster.Account(id)); err != nil {
		return err
	}
	if id == string(a.caller.Account) {
		return rest.Errorf(http.StatusConflict, codeAccountInUse, "it is the caller's own account")
	}
	if f.clm == nil {
		return lifecycleUnavailable()
	}
	found, err := f.clm.List(clmclient.WithTenant(a.r.Context(), cluster.Account(id)), clusters,
		clmclient.ResourceQuery{Size: 1})
	if err != nil {
		return lifecycleUnavailable().Because(err)
	}
	if found.Total > 0 {
		return rest.Errorf(http.StatusConflict, codeAccountInUse, "the account %s has %d clusters; delete them first",
			id, found.Total)
	}
	return a.noContent(a.directory.DeleteAccount(a.r.Context(), cluster.Account(id), version))
}
