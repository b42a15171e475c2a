package rosa

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"atoll.dev/access"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// Kinds of resources that actions are about.
const (
	kindRegion            access.ResourceKind = "Region" // the API itself
	kindCluster           access.ResourceKind = "Cluster"
	kindNodePool          access.ResourceKind = "NodePool"
	kindCredential        access.ResourceKind = "Credential"
	kindManagementCluster access.ResourceKind = "ManagementCluster"
	kindWork              access.ResourceKind = "Work"
	kindResourceBundle    access.ResourceKind = "ResourceBundle"
	kindAccount           access.ResourceKind = "Account"
	kindPolicy            access.ResourceKind = "Policy"
	kindGroup             access.ResourceKind = "Group"
	kindAttachment        access.ResourceKind = "Attachment"
	kindAdmin             access.ResourceKind = "Admin"
	kindLink              access.ResourceKind = "Link"
	kindLinkCode          access.ResourceKind = "LinkCode"
)

// endpoint is a row of the table of routes: the method and the path below the
// API's prefix, the action and the resource that a decision goes by, and the
// handler.
type endpoint struct {
	method, path string
	action       access.Action
	kind         access.ResourceKind
	id           string // path parameter that names the resource
	audience     access.Audience
	handler      rest.Handler
}

// escalations are the query parameters with which a request takes a second action. A forced
// deletion does not wait for the adapters of a cluster.
var escalations = map[access.Action][]access.Escalation{
	"DeleteCluster": {{Parameter: "force", Action: "ForceDeleteCluster", Audience: access.Operators}},
	"ListAudit":     {{Parameter: "all", Action: "ListRegionAudit", Audience: access.Operators}},
}

// endpoints is the table of all routes of the OpenAPI document.
func (f *front) endpoints() []endpoint {
	const public, customers, operators = access.Public, access.Customers, access.Operators
	h := f.customers
	clusters, pools := h.handlersOf("CLUSTERS-MGMT"), h.handlersOf("NODEPOOLS-MGMT")
	return []endpoint{
		{"GET", "/live", "DescribeHealth", kindRegion, "", public, f.ops.Live},
		{"GET", "/ready", "DescribeHealth", kindRegion, "", public, f.ops.Ready},
		{"GET", "/openapi", "DescribeAPI", kindRegion, "", customers, f.getOpenAPI},

		{"POST", "/clusters", "CreateCluster", kindCluster, "", customers, clusters("CREATE", h.createCluster)},
		{"GET", "/clusters", "ListClusters", kindCluster, "", customers, clusters("LIST", h.listClusters)},
		{"GET", "/clusters/{id}", "DescribeCluster", kindCluster, "id", customers, clusters("GET", h.getCluster)},
		{"PATCH", "/clusters/{id}", "UpdateCluster", kindCluster, "id", customers,
			clusters("UPDATE", h.patchCluster)},
		{"PUT", "/clusters/{id}", "UpdateCluster", kindCluster, "id", customers,
			clusters("UPDATE", h.replaceCluster)},
		{"DELETE", "/clusters/{id}", "DeleteCluster", kindCluster, "id", customers,
			clusters("DELETE", h.deleteCluster)},
		{"GET", "/clusters/{id}/statuses", "DescribeCluster", kindCluster, "id", customers,
			clusters("STATUS", h.clusterStatuses)},
		{"GET", "/clusters/{id}/events", "DescribeCluster", kindCluster, "id", customers,
			clusters("EVENTS", h.clusterEvents)},
		{"GET", "/clusters/{id}/backups", "ListClusterBackups", kindCluster, "id", customers,
			clusters("BACKUPS", h.clusterBackups)},
		{"POST", "/clusters/{id}/restore", "CreateRestore", kindCluster, "id", customers,
			clusters("RESTORE", h.restoreCluster)},
		{"POST", "/clusters/{id}/rollback", "CreateRollback", kindCluster, "id", customers,
			clusters("ROLLBACK", h.rollbackCluster)},
		{"POST", "/clusters/{id}/rotate", "CreateRotation", kindCluster, "id", customers,
			clusters("ROTATE", h.rotateClusterKey)},

		{"POST", "/clusters/{id}/credentials", "CreateCredential", kindCluster, "id", customers,
			clusters("CREDENTIAL", h.createCredential)},
		{"GET", "/clusters/{id}/credentials", "ListCredentials", kindCluster, "id", customers,
			clusters("CREDENTIAL", h.listCredentials)},
		{"GET", "/clusters/{id}/credentials/{cid}", "DescribeCredential", kindCredential, "cid", customers,
			clusters("CREDENTIAL", h.getCredential)},
		{"DELETE", "/clusters/{id}/credentials/{cid}", "DeleteCredential", kindCredential, "cid", customers,
			clusters("CREDENTIAL", h.revokeCredential)},

		{"POST", "/nodepools", "CreateNodePool", kindNodePool, "", customers, pools("CREATE", h.createNodePool)},
		{"GET", "/nodepools", "ListNodePools", kindNodePool, "", customers, pools("LIST", h.listNodePools)},
		{"GET", "/nodepools/{id}", "DescribeNodePool", kindNodePool, "id", customers, pools("GET", h.getNodePool)},
		{"PATCH", "/nodepools/{id}", "UpdateNodePool", kindNodePool, "id", customers,
			pools("UPDATE", h.patchNodePool)},
		{"PUT", "/nodepools/{id}", "UpdateNodePool", kindNodePool, "id", customers,
			pools("UPDATE", h.replaceNodePool)},
		{"DELETE", "/nodepools/{id}", "DeleteNodePool", kindNodePool, "id", customers,
			pools("DELETE", h.deleteNodePool)},
		{"GET", "/nodepools/{id}/status", "DescribeNodePool", kindNodePool, "id", customers,
			pools("STATUS", h.nodePoolStatus)},

		{"POST", "/management_clusters", "RegisterManagementCluster", kindManagementCluster, "", operators,
			f.registerManagementCluster},
		{"GET", "/management_clusters", "ListManagementClusters", kindManagementCluster, "", operators,
			f.listManagementClusters},
		{"GET", "/management_clusters/{id}", "DescribeManagementCluster", kindManagementCluster, "id", operators,
			f.getManagementCluster},
		{"PATCH", "/management_clusters/{id}", "UpdateManagementCluster", kindManagementCluster, "id", operators,
			f.updateManagementCluster},
		{"DELETE", "/management_clusters/{id}", "DeleteManagementCluster", kindManagementCluster, "id", operators,
			f.deleteManagementCluster},

		{"POST", "/work", "CreateWork", kindWork, "", operators, f.createWork},
		{"GET", "/work", "ListWork", kindWork, "", operators, f.listWork},
		{"GET", "/work/{id}", "DescribeWork", kindWork, "id", operators, f.getWork},
		{"PUT", "/work/{id}", "UpdateWork", kindWork, "id", operators, f.replaceWork},
		{"DELETE", "/work/{id}", "DeleteWork", kindWork, "id", operators, f.deleteWork},

		{"GET", "/resource_bundles", "ListResourceBundles", kindResourceBundle, "", operators, f.listBundles},
		{"GET", "/resource_bundles/{id}", "DescribeResourceBundle", kindResourceBundle, "id", operators, f.getBundle},
		{"DELETE", "/resource_bundles/{id}", "DeleteResourceBundle", kindResourceBundle, "id", operators,
			f.deleteBundle},

		{"GET", "/whoami", access.ActionDescribeCaller, kindRegion, "", customers, f.whoAmI},
		{"POST", "/accounts", "CreateAccount", kindAccount, "", operators, f.accounts(f.createAccount)},
		{"GET", "/accounts", "ListAccounts", kindAccount, "", operators, f.accounts(f.listAccounts)},
		{"GET", "/accounts/{id}", "DescribeAccount", kindAccount, "id", operators, f.accounts(f.getAccount)},
		{"DELETE", "/accounts/{id}", "DeleteAccount", kindAccount, "id", operators, f.accounts(f.deleteAccount)},

		{"GET", "/accounts/{id}/quotas", "DescribeAccountQuotas", kindAccount, "id", operators,
			f.accounts(f.getAccountQuotas)},
		{"PATCH", "/accounts/{id}/quotas", "UpdateAccountQuotas", kindAccount, "id", operators,
			f.accounts(f.updateAccountQuotas)},
		{"GET", "/quotas", "ListQuotas", kindAccount, "", customers, f.listQuotas},

		{"GET", "/audit", "ListAudit", kindAccount, "", customers, f.listAudit},

		{"POST", "/authz/policies", "CreatePolicy", kindPolicy, "", customers, f.accounts(f.createPolicy)},
		{"GET", "/authz/policies", "ListPolicies", kindPolicy, "", customers, f.accounts(f.listPolicies)},
		{"GET", "/authz/policies/{id}", "DescribePolicy", kindPolicy, "id", customers, f.accounts(f.getPolicy)},
		{"PUT", "/authz/policies/{id}", "UpdatePolicy", kindPolicy, "id", customers, f.accounts(f.updatePolicy)},
		{"DELETE", "/authz/policies/{id}", "DeletePolicy", kindPolicy, "id", customers, f.accounts(f.deletePolicy)},
		{"POST", "/authz/groups", "CreateGroup", kindGroup, "", customers, f.accounts(f.createGroup)},
		{"GET", "/authz/groups", "ListGroups", kindGroup, "", customers, f.accounts(f.listGroups)},
		{"GET", "/authz/groups/{id}", "DescribeGroup", kindGroup, "id", customers, f.accounts(f.getGroup)},
		{"DELETE", "/authz/groups/{id}", "DeleteGroup", kindGroup, "id", customers, f.accounts(f.deleteGroup)},
		{"GET", "/authz/groups/{id}/members", "ListGroupMembers", kindGroup, "id", customers, f.accounts(f.listMembers)},
		{"PUT", "/authz/groups/{id}/members", "UpdateGroupMembers", kindGroup, "id", customers,
			f.accounts(f.updateMembers)},
		{"POST", "/authz/attachments", "CreateAttachment", kindAttachment, "", customers,
			f.accounts(f.createAttachment)},
		{"GET", "/authz/attachments", "ListAttachments", kindAttachment, "", customers, f.accounts(f.listAttachments)},
		{"DELETE", "/authz/attachments/{id}", "DeleteAttachment", kindAttachment, "id", customers,
			f.accounts(f.deleteAttachment)},
		{"POST", "/authz/admins", "CreateAdmin", kindAdmin, "", customers, f.accounts(f.createAdmin)},
		{"GET", "/authz/admins", "ListAdmins", kindAdmin, "", customers, f.accounts(f.listAdmins)},
		{"DELETE", "/authz/admins/{arn}", "DeleteAdmin", kindAdmin, "arn", customers, f.accounts(f.deleteAdmin)},
		{"POST", "/links", access.ActionCreateLink, kindRegion, "", customers, f.accounts(f.redeemLink)},
		{"POST", "/authz/link_codes", "CreateLinkCode", kindLinkCode, "", customers, f.accounts(f.createLinkCode)},
		{"GET", "/authz/link_codes", "ListLinkCodes", kindLinkCode, "", customers, f.accounts(f.listLinkCodes)},
		{"DELETE", "/authz/link_codes/{id}", "DeleteLinkCode", kindLinkCode, "id", customers,
			f.accounts(f.deleteLinkCode)},
		{"GET", "/authz/links", "ListLinks", kindLink, "", customers, f.accounts(f.listLinks)},
		{"DELETE", "/authz/links/{id}", "DeleteLink", kindLink, "id", customers, f.accounts(f.deleteLink)},
		{"POST", "/authz/check", "CheckAuthorization", kindAccount, "", customers, f.accounts(f.checkAuthorization)},
	}
}

// administer is the escalation of routes about one account's policies: with accountId, an operator
// acts on another account.
var administer = access.Escalation{
	Parameter: "accountId", Value: access.IfGiven, Action: "AdministerAccount", Audience: access.Operators,
}

// isAdministered reports whether the routes of a path have the escalation administer. Only these take
// their account from accountId: on any other route the parameter would move a request out of the reach
// of a policy about the caller's own account.
func isAdministered(path string) bool {
	_, path, _ = strings.Cut(path, apiPrefix)
	return strings.HasPrefix(path, "/authz/")
}

// apiPrefix is the prefix of every route below its stage.
const apiPrefix = "/api/v0"

// stages are the prefixes below which the API is served: none, and that of the
// API gateway's stage.
var stages = []string{"", "/prod"}

// register registers every endpoint below each stage.
func (f *front) register(router *access.Router) {
	for _, stage := range stages {
		for _, e := range f.endpoints() {
			h := e.handler
			if e.audience != access.Public {
				h = withActor(h, e)
			}
			route := access.Route{Method: e.method, Path: stage + apiPrefix + e.path, Action: e.action,
				Kind: e.kind, ID: e.id, Audience: e.audience}
			more := escalations[e.action]
			if isAdministered(route.Path) {
				more = append(slices.Clone(more), administer)
			}
			router.Handle(route, h, more...)
		}
	}
}

// withActor makes the caller the actor of the calls to the lifecycle manager and Maestro, and refuses
// queries that neither can carry out.
func withActor(h rest.Handler, e endpoint) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		caller, ok := access.FromContext(r.Context())
		if !ok { // the Router lets no such request through (I10)
			return rest.Errorf(http.StatusForbidden, string(access.MissingAuthentication),
				"sign the request with AWS Signature Version 4")
		}
		if err := checkQuery(r.URL.RawQuery); err != nil {
			return err
		}
		id := caller.RequestID
		if id == "" {
			id = rest.OperationID(r.Context())
		}
		return h(w, r.WithContext(remote.WithActor(r.Context(), remote.Actor{
			Principal: string(caller.Principal), Account: string(caller.Account), RequestID: id,
			Audit: auditedRequest(r, caller, e),
		})))
	}
}

// checkQuery refuses a query that would be ignored here or be an error of the
// database behind.
func checkQuery(raw string) error {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "the query cannot be decoded: %s", err)
	}
	for name, values := range q {
		for _, v := range values {
			if strings.ContainsRune(v, 0) || !utf8.ValidString(v) {
				return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
					"the parameter %s has a NUL character or invalid UTF-8; remove it", quote(name))
			}
		}
	}
	return nil
}
