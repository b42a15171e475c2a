package policy

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"
)

// Kind is an entity type of resources: Cluster.
type Kind string

// The kinds of resources. An action on a collection is about the Account, or about the Region when
// it is for operators.
const (
	Account           Kind = "Account"
	Region            Kind = "Region"
	Cluster           Kind = "Cluster"
	NodePool          Kind = "NodePool"
	Credential        Kind = "Credential"
	ManagementCluster Kind = "ManagementCluster"
	Work              Kind = "Work"
	ResourceBundle    Kind = "ResourceBundle"
	PolicyDocument    Kind = "Policy"
	Group             Kind = "Group"
	Attachment        Kind = "Attachment"
	Admin             Kind = "Admin"
	Link              Kind = "Link"
	LinkCode          Kind = "LinkCode"
)

// Groups of actions. A managed policy of the same name permits each of them.
const (
	ReadOnly      = "ReadOnly"
	ClusterAdmin  = "ClusterAdmin"
	NodePoolAdmin = "NodePoolAdmin"
	PolicyAdmin   = "PolicyAdmin"
	Operator      = "Operator"
	AllActions    = "AllActions"
)

// Action is an action of the Platform API.
type Action struct {
	Name   string
	On     Kind     // the kind of the action's resource
	Groups []string // the groups of actions that contain it

	isForOperators bool
}

// actions is the table of all actions. A test of package front/rosa compares it with the routes.
var actions = slices.Concat(
	in([]string{ReadOnly, ClusterAdmin, NodePoolAdmin, PolicyAdmin, Operator},
		on(Region, "DescribeAPI", "DescribeCaller")),
	in([]string{ReadOnly, ClusterAdmin, NodePoolAdmin}, on(Account, "ListClusters", "ListNodePools"),
		on(Cluster, "DescribeCluster"), on(NodePool, "DescribeNodePool")),
	in([]string{ReadOnly, ClusterAdmin}, on(Cluster, "ListCredentials", "ListClusterBackups"),
		on(Credential, "DescribeCredential")),
	in([]string{ClusterAdmin}, on(Cluster, "CreateCluster", "UpdateCluster", "DeleteCluster", "TagCluster",
		"CreateCredential", "CreateRestore", "CreateRollback", "CreateRotation"), on(Credential, "DeleteCredential")),
	in([]string{ClusterAdmin, NodePoolAdmin}, on(Cluster, "CreateNodePool"),
		on(NodePool, "UpdateNodePool", "DeleteNodePool")),
	in([]string{ReadOnly, PolicyAdmin}, on(Account, "ListPolicies", "ListGroups", "ListAttachments", "ListAdmins"),
		on(PolicyDocument, "DescribePolicy"), on(Group, "DescribeGroup", "ListGroupMembers")),
	in([]string{PolicyAdmin}, on(Account, "CreatePolicy", "CreateGroup", "CreateAttachment", "CheckAuthorization"),
		on(PolicyDocument, "UpdatePolicy", "DeletePolicy"), on(Group, "UpdateGroupMembers", "DeleteGroup"),
		on(Attachment, "DeleteAttachment")),
	in([]string{PolicyAdmin, Operator}, on(Account, "ListAudit")),
	in([]string{ReadOnly, ClusterAdmin, NodePoolAdmin, PolicyAdmin, Operator}, on(Account, "ListQuotas")),
	// Who creates a link code makes a person any principal of the account.
	in(nil, on(Account, "CreateAdmin", "CreateLinkCode"), on(Admin, "DeleteAdmin"), on(Link, "DeleteLink"),
		on(LinkCode, "DeleteLinkCode")),
	in([]string{PolicyAdmin}, on(Account, "ListLinks", "ListLinkCodes")),
	in(nil, on(Region, "CreateLink")),
	forOperators(in([]string{Operator},
		on(Region, "RegisterManagementCluster", "ListManagementClusters", "CreateWork", "ListWork",
			"ListResourceBundles", "CreateAccount", "ListAccounts"),
		on(ManagementCluster, "DescribeManagementCluster", "UpdateManagementCluster", "DeleteManagementCluster"),
		on(Work, "DescribeWork", "UpdateWork", "DeleteWork"),
		on(ResourceBundle, "DescribeResourceBundle", "DeleteResourceBundle"),
		on(Account, "DescribeAccount", "DeleteAccount", "AdministerAccount", "ListRegionAudit",
			"DescribeAccountQuotas", "UpdateAccountQuotas"),
		on(Cluster, "ForceDeleteCluster"))),
	// Not in Operator: who creates a privileged account can give every right of the region to its principals.
	forOperators(in(nil, on(Region, "CreatePrivilegedAccount"))),
)

// forOperators returns actions that only the principals of privileged accounts can take.
func forOperators(list []Action) []Action {
	for i := range list {
		list[i].isForOperators = true
	}
	return list
}

// on returns actions about a kind of resource.
func on(kind Kind, names ...string) (list []Action) {
	for _, name := range names {
		list = append(list, Action{Name: name, On: kind})
	}
	return list
}

// in returns actions as members of groups, and of AllActions.
func in(groups []string, lists ...[]Action) []Action {
	list := slices.Concat(lists...)
	for i := range list {
		list[i].Groups = append(slices.Clone(groups), AllActions)
	}
	return list
}

// IsForOperators reports whether only the principals of privileged accounts can take the action.
func (a Action) IsForOperators() bool { return a.isForOperators }

// Actions returns every action of the schema.
func Actions() []Action { return slices.Clone(actions) }

// Lookup returns the action of a name.
func Lookup(name string) (a Action, known bool) {
	a, known = byName[name]
	return a, known
}

var byName = func() map[string]Action {
	m := make(map[string]Action, len(actions))
	for _, a := range actions {
		if _, twice := m[a.Name]; twice {
			panic("policy: the action " + a.Name + " is in the table twice")
		}
		m[a.Name] = a
	}
	return m
}()

// entityTypes is the part of the schema that does not follow from the table of actions.
const entityTypes = `namespace ROSA {
  entity Region;
  entity Account;
  entity Group in [Account];
  // A user, a role, or a session of a role. Its id is its ARN. A session is in its role.
  entity Principal in [Principal, Group, Account] {arn: String, accountId: String};
  entity Cluster in [Account] tags String;
  // Node pools and credentials have the tags of their cluster.
  entity NodePool in [Cluster, Account] tags String;
  entity Credential in [Cluster, Account] tags String;
  entity ManagementCluster in [Region];
  entity Work in [Region];
  entity ResourceBundle in [Region];
  entity Policy in [Account];
  entity Attachment in [Account];
  entity Admin in [Account];
  entity Link in [Account];
  entity LinkCode in [Account];
  type Context = {
    sourceIp: ipaddr,
    time: datetime,
    region: String,
    userAgent: String,
    mfa?: Bool,
  };
`

// Schema returns the schema of the Platform API in Cedar's syntax.
func Schema() string {
	var b strings.Builder
	b.WriteString(entityTypes)
	for _, group := range []string{ReadOnly, ClusterAdmin, NodePoolAdmin, PolicyAdmin, Operator, AllActions} {
		fmt.Fprintf(&b, "  action %s;\n", group)
	}
	for _, a := range actions {
		fmt.Fprintf(&b, "  action %s in [%s] appliesTo {principal: [Principal], resource: [%s], context: Context};\n",
			a.Name, strings.Join(a.Groups, ", "), a.On)
	}
	b.WriteString("}\n")
	return b.String()
}

const (
	namespace  = "ROSA::"
	actionType = types.EntityType(namespace + "Action")
)

// uid returns the entity of a kind.
func uid(kind Kind, id string) types.EntityUID {
	return types.NewEntityUID(types.EntityType(namespace+kind), types.String(id))
}

// validator checks policies by the schema. It is made when the first policy is read: most commands read none.
var validator = sync.OnceValue(func() *validate.Validator {
	var s schema.Schema
	s.SetFilename("schema")
	if err := s.UnmarshalCedar([]byte(Schema())); err != nil {
		panic("policy: the schema is not Cedar: " + err.Error())
	}
	resolved, err := s.Resolve()
	if err != nil {
		panic("policy: the schema is wrong: " + err.Error())
	}
	return validate.New(resolved)
})

// actionEntities are the actions with their groups as parents.
var actionEntities = func() types.EntityMap {
	m := types.EntityMap{}
	for _, a := range actions {
		var groups []types.EntityUID
		for _, g := range a.Groups {
			groups = append(groups, types.NewEntityUID(actionType, types.String(g)))
		}
		id := types.NewEntityUID(actionType, types.String(a.Name))
		m[id] = types.Entity{UID: id, Parents: types.NewEntityUIDSet(groups...)}
	}
	return m
}()
