package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// Kinds of documents of a Directory, in the database platform, beside KindAccount. The scope of each
// is its account.
const (
	KindAdmin      store.Kind = "Admin"      // id: the principal's ARN
	KindGroup      store.Kind = "Group"      // with its members
	KindPolicy     store.Kind = "Policy"     // custom policies; managed ones have no documents
	KindAttachment store.Kind = "Attachment" // of a policy to a principal or a group
)

var directoryKinds = []store.Kind{KindAccount, KindAdmin, KindGroup, KindPolicy, KindAttachment}

// Errors of a Directory that callers decide on.
var (
	ErrPolicyInUse = errors.New("the policy is attached")
	ErrGroupInUse  = errors.New("a policy is attached to the group")
	ErrLastAdmin   = errors.New("the last administrator of a privileged account")
	ErrTooMany     = errors.New("too many in the account")
	ErrNoTarget    = errors.New("the target of the attachment does not exist")
)

// Document has the members that all documents of a Directory have.
type Document struct {
	ID                   string
	Account              cluster.Account
	Version              int64
	CreatedAt, UpdatedAt time.Time
	CreatedBy            string // ARN; "" when not known
}

// AccountDocument is an account of the region.
type AccountDocument struct {
	Document
	Privileged bool
}

// PolicyDocument is a policy that an account has written.
type PolicyDocument struct {
	Document
	Name, Description, Text string
}

// GroupDocument is a group of principals.
type GroupDocument struct {
	Document
	Name, Description string
	Members           []string // ARNs, sorted
}

// TargetType is the kind of an attachment's target.
type TargetType string

// The types of targets.
const (
	TargetUser  TargetType = "user" // a user or a role, by its ARN
	TargetGroup TargetType = "group"
)

// AttachmentDocument attaches a policy to a target.
type AttachmentDocument struct {
	Document
	PolicyID string // of a custom policy, or the name of a managed one
	Type     TargetType
	Target   string // ARN, or id of a group
}

type accountSpec struct {
	Account
	CreatedBy string `json:"createdBy,omitempty"`
}

type policySpec struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Text        string `json:"policy"`
	Statements  int    `json:"statements,omitempty"` // for checkReach
	CreatedBy   string `json:"createdBy"`
}

type groupSpec struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Members     []string `json:"members"`
	CreatedBy   string   `json:"createdBy"`
}

type attachmentSpec struct {
	PolicyID  string     `json:"policyId"`
	Type      TargetType `json:"targetType"`
	Target    string     `json:"targetId"`
	CreatedBy string     `json:"createdBy"`
}

type adminSpec struct {
	CreatedBy string `json:"createdBy"`
}

// uses counts the attachments of a policy or a group, in its status.
type uses struct {
	Attachments int `json:"attachments"`
}

// Directory stores the accounts of a region with their administrators, groups, policies and
// attachments, and decides by them. KeyStore.Run keeps its memory up to date: a change takes effect
// in every process within a second. While the database is down, decisions are by the last read; a
// Directory that was never read refuses everything with 503.
type Directory struct {
	store *store.Store
	keys  *KeyStore // with the links of the same database
	cache directoryCache
}

var _ Policy = (*Directory)(nil)

// Admins returns the ARNs of all administrators of an account.
func (d *Directory) Admins(ctx context.Context, account cluster.Account) (arns []string, err error) {
	if err := checkAccount(account); err != nil {
		return nil, err
	}
	for after := ""; ; {
		page, err := d.store.List(ctx, store.Query{Kind: KindAdmin, Scope: string(account), Limit: 500, After: after})
		if err != nil {
			return nil, err
		}
		for _, doc := range page.Documents {
			arns = append(arns, doc.ID)
		}
		if after = page.Next; after == "" {
			return arns, nil
		}
	}
}

// CreateAdmin makes a principal an administrator of its account. The error is store.ErrExists when
// it is one already.
func (d *Directory) CreateAdmin(ctx context.Context, account cluster.Account, principal policy.Principal) error {
	if err := checkPrincipal(account, principal); err != nil {
		return err
	}
	_, err := d.inAccount(ctx, account, func(tx *store.Tx) (store.Document, error) {
		if err := countAdmins(ctx, tx, account, +1); err != nil {
			return store.Document{}, err
		}
		doc, err := tx.Create(ctx, document(KindAdmin, string(principal), account, "",
			adminSpec{CreatedBy: store.ActorFrom(ctx).Principal}))
		if err == nil {
			err = checkCount(ctx, tx, account, KindAdmin, maxAdmins)
		}
		return doc, err
	})
	return err
}

// adminCount is the status of an account.
type adminCount struct {
	Admins int `json:"admins"`
}

// countAdmins adds to the count of an account's administrators.
func countAdmins(ctx context.Context, tx *store.Tx, account cluster.Account, n int) error {
	_, _, err := tx.Update(ctx, KindAccount, string(account), 0, func(doc *store.Document) error {
		var count adminCount
		of, err := toAccount(*doc)
		if err = errors.Join(err, json.Unmarshal(doc.Status, &count)); err != nil {
			return fmt.Errorf("reading account %s: %w", account, err)
		}
		if count.Admins += n; of.Privileged && count.Admins <= 0 {
			return ErrLastAdmin
		}
		doc.Status = toJSON(count)
		return nil
	})
	return err
}

// DeleteAdmin removes an administrator. The error is ErrLastAdmin for the last one of a privileged
// account: without an administrator, every principal of that account may do everything. The same transaction removes
// the link codes that name the administrator or that the administrator created.
func (d *Directory) DeleteAdmin(ctx context.Context, account cluster.Account, principal policy.Principal) error {
	_, err := d.inAccount(ctx, account, func(tx *store.Tx) (store.Document, error) {
		doc, err := tx.GetForUpdate(ctx, KindAdmin, string(principal))
		if err == nil {
			err = checkScope(doc, account)
		}
		if err == nil {
			err = countAdmins(ctx, tx, account, -1)
		}
		if err == nil {
			err = removeLinkCodesOf(ctx, tx, account, principal)
		}
		if err != nil {
			return doc, err
		}
		return removed(doc), tx.Remove(ctx, KindAdmin, string(principal), 0)
	})
	return err
}

// Policy returns a custom policy of an account.
func (d *Directory) Policy(ctx context.Context, account cluster.Account, id string) (PolicyDocument, error) {
	doc, err := d.get(ctx, KindPolicy, account, id)
	if err != nil {
		return PolicyDocument{}, err
	}
	return toPolicy(doc)
}

// PutPolicy creates a policy, or replaces the one with the id. It validates the policy first; its
// error is then ErrInvalid and names the position. The error is store.ErrExists when the account has
// another policy of the name.
func (d *Directory) PutPolicy(ctx context.Context, p PolicyDocument) (PolicyDocument, error) {
	if err := policy.Check(p.Text); err != nil {
		return PolicyDocument{}, fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	parsed, err := policy.Parse(p.Text)
	if err != nil {
		return PolicyDocument{}, fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	spec := policySpec{Name: p.Name, Description: p.Description, Text: p.Text, Statements: parsed.Statements(),
		CreatedBy: store.ActorFrom(ctx).Principal}
	doc, err := d.inAccount(ctx, p.Account, func(tx *store.Tx) (store.Document, error) {
		if p.ID == "" {
			doc, err := tx.Create(ctx, document(KindPolicy, newID(), p.Account, p.Name, spec))
			if err == nil {
				err = checkCount(ctx, tx, p.Account, KindPolicy, maxPolicies)
			}
			return doc, err
		}
		doc, _, err := tx.Update(ctx, KindPolicy, p.ID, p.Version, func(doc *store.Document) error {
			var had policySpec
			if err := json.Unmarshal(doc.Spec, &had); err != nil || cluster.Account(doc.Scope) != p.Account {
				return store.ErrNotFound
			}
			if had.Name != p.Name {
				return fmt.Errorf("the name of a policy cannot be changed: %w", ErrInvalid)
			}
			spec.CreatedBy = had.CreatedBy
			doc.Spec = toJSON(spec)
			return nil
		})
		if err == nil {
			err = checkReach(ctx, tx, p.Account)
		}
		return doc, err
	})
	if err != nil {
		return PolicyDocument{}, err
	}
	return toPolicy(doc)
}

// DeletePolicy removes a policy. The error is ErrPolicyInUse while it is attached.
func (d *Directory) DeletePolicy(ctx context.Context, account cluster.Account, id string, ifVersion int64) error {
	return d.remove(ctx, KindPolicy, account, id, ifVersion, ErrPolicyInUse)
}

// Group returns a group of an account.
func (d *Directory) Group(ctx context.Context, account cluster.Account, id string) (GroupDocument, error) {
	doc, err := d.get(ctx, KindGroup, account, id)
	if err != nil {
		return GroupDocument{}, err
	}
	return toGroup(doc)
}

// CreateGroup creates a group without members.
func (d *Directory) CreateGroup(ctx context.Context, g GroupDocument) (GroupDocument, error) {
	doc, err := d.inAccount(ctx, g.Account, func(tx *store.Tx) (store.Document, error) {
		doc, err := tx.Create(ctx, document(KindGroup, newID(), g.Account, g.Name, groupSpec{Name: g.Name,
			Description: g.Description, Members: []string{}, CreatedBy: store.ActorFrom(ctx).Principal}))
		if err == nil {
			err = checkCount(ctx, tx, g.Account, KindGroup, maxGroups)
		}
		return doc, err
	})
	if err != nil {
		return GroupDocument{}, err
	}
	return toGroup(doc)
}

// DeleteGroup removes a group. The error is ErrGroupInUse while a policy is attached to it.
func (d *Directory) DeleteGroup(ctx context.Context, account cluster.Account, id string, ifVersion int64) error {
	return d.remove(ctx, KindGroup, account, id, ifVersion, ErrGroupInUse)
}

// newID returns an id of a document.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// Window is a part of a list.
type Window struct {
	Limit, Offset int
	// Policy, Type and Target select attachments; "" selects all.
	Policy, Target string
	Type           TargetType
}

// Accounts returns a part of the accounts, by id, and how many there are.
func (d *Directory) Accounts(ctx context.Context, w Window) ([]AccountDocument, int, error) {
	return listOf(ctx, d, KindAccount, "", w, toAccount)
}

// Policies returns a part of the policies of an account, by id, and how many it has.
func (d *Directory) Policies(ctx context.Context, account cluster.Account, w Window) ([]PolicyDocument, int, error) {
	return listIn(ctx, d, KindPolicy, account, w, toPolicy)
}

// Groups returns a part of the groups of an account, by id, and how many it has.
func (d *Directory) Groups(ctx context.Context, account cluster.Account, w Window) ([]GroupDocument, int, error) {
	return listIn(ctx, d, KindGroup, account, w, toGroup)
}

// Attachments returns a part of the attachments of an account, by id, and how many match.
func (d *Directory) Attachments(ctx context.Context, account cluster.Account, w Window) ([]AttachmentDocument, int,
	error) {
	return listIn(ctx, d, KindAttachment, account, w, toAttachment)
}

// listIn returns a page of the documents of one account. It refuses an invalid account id, because the store reads an
// empty scope as all scopes.
func listIn[T any](ctx context.Context, d *Directory, kind store.Kind, account cluster.Account, w Window,
	to func(store.Document) (T, error)) (items []T, total int, err error) {
	if err := checkAccount(account); err != nil {
		return nil, 0, err
	}
	return listOf(ctx, d, kind, account, w, to)
}

// checkAccount refuses a text that cannot be the id of an account.
func checkAccount(account cluster.Account) error {
	if !IsAccountID(string(account)) {
		return fmt.Errorf("account %s is not 12 digits: %w", quoted(account), ErrInvalid)
	}
	return nil
}

func listOf[T any](ctx context.Context, d *Directory, kind store.Kind, account cluster.Account, w Window,
	to func(store.Document) (T, error)) (items []T, total int, err error) {
	q := store.Query{Kind: kind, Scope: string(account), Limit: max(1, w.Limit), Offset: w.Offset, Count: true}
	if kind == KindAttachment {
		q.Where = store.Fragment{SQL: `($1 = '' or d.spec->>'policyId' = $1) and ($2 = '' or d.spec->>'targetId' = $2)
			and ($3 = '' or d.spec->>'targetType' = $3)`, Args: []any{w.Policy, w.Target, string(w.Type)}}
	}
	page, err := d.store.List(ctx, q)
	if err != nil {
		return nil, 0, err
	}
	for _, doc := range page.Documents[:min(len(page.Documents), w.Limit)] {
		item, err := to(doc)
		if err != nil {
			return nil, 0, fmt.Errorf("reading %s %s: %w", kind, doc.ID, err)
		}
		items = append(items, item)
	}
	return items, page.Total, nil
}
