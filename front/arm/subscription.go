package arm

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// subscription is a subscription of Azure, which has one account of the region.
type subscription struct {
	ID      string          `json:"-"`
	Account cluster.Account `json:"account"`
	// Provisioned is true when the account exists and its role may administrate clusters.
	Provisioned bool `json:"provisioned"`
	// Body is what ARM put: state, registrationDate, properties.
	Body map[string]any `json:"body"`
}

// States of a subscription.
const (
	registered   = "Registered"
	unregistered = "Unregistered"
	warned       = "Warned"
	suspended    = "Suspended"
	deleted      = "Deleted"
)

func (s subscription) state() string {
	state, _ := s.Body["state"].(string)
	return state
}

// checkState refuses a method that the state of the subscription does not permit.
func (s subscription) checkState(method string) error {
	refused := func(status int, format string, args ...any) error {
		return rest.Errorf(status, codeSubscriptionState, format, args...)
	}
	switch state := s.state(); {
	case state == registered:
		return nil
	case method == http.MethodGet && state != "":
		return nil
	case state == "", state == unregistered:
		return refused(http.StatusBadRequest, "Request is not allowed in unregistered subscription '%s'.", s.ID)
	case method == http.MethodDelete && state != deleted:
		return nil
	case state == deleted:
		return refused(http.StatusBadRequest, "Request is not allowed in subscription in state '%s'.", state)
	default:
		return refused(http.StatusConflict, "Request is not allowed in subscription in state '%s'.", state)
	}
}

// subscription reads a subscription. One that ARM never put has no state.
func (f *front) subscription(ctx context.Context, id string) (subscription, error) {
	s := subscription{ID: id}
	d, err := f.store.Get(ctx, kindSubscription, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return s, nil
	case err != nil:
		return s, err
	}
	if err := decodeNumbers(d.Spec, &s); err != nil {
		return s, fmt.Errorf("reading subscription %s: %w", id, err)
	}
	return s, nil
}

// lockSubscription locks the subscription of a request until the transaction ends, and refuses the request
// if ARM has changed the state since it was read. So the deletion of a subscription finds every cluster
// that was accepted before.
func (f *front) lockSubscription(x *exchange, tx *store.Tx) error {
	d, err := tx.GetForUpdate(x.ctx, kindSubscription, x.subscription.ID)
	if err != nil {
		return err
	}
	now := subscription{ID: d.ID}
	if err := decodeNumbers(d.Spec, &now); err != nil {
		return fmt.Errorf("reading subscription %s: %w", d.ID, err)
	}
	return now.checkState(x.r.Method)
}

// putSubscription stores the state of a subscription as ARM sends it, in any order of states, and creates
// its account. It answers with the subscription only when the account exists.
func (f *front) putSubscription(x *exchange) error {
	body, err := x.readBody()
	if err != nil {
		return err
	}
	var p problems
	state, _ := body["state"].(string)
	if !slices.Contains([]string{registered, unregistered, warned, suspended, deleted}, state) {
		p.add("state", "Unsupported value: %q: supported values: \"Deleted\", \"Registered\", \"Suspended\", "+
			"\"Unregistered\", \"Warned\"", state)
	}
	if date, isText := body["registrationDate"].(string); !isText || date == "" {
		p.add("registrationDate", "Required value")
	}
	if err := invalid(p); err != nil {
		return err
	}
	s := x.subscription
	s.Body = body
	if err := f.storeSubscription(x.ctx, &s); err != nil {
		return err
	}
	if state == deleted {
		if err := f.deleteClusters(x, s); err != nil {
			return err
		}
	} else if err := f.provisionAccount(x.ctx, s); err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, s.Body)
}

// storeSubscription creates or changes the document. Its name is the account, so that no two
// subscriptions share one.
func (f *front) storeSubscription(ctx context.Context, s *subscription) error {
	for attempt := range 10 {
		_, _, err := f.store.Update(ctx, kindSubscription, s.ID, 0, func(d *store.Document) (err error) {
			var before subscription
			if err := decodeNumbers(d.Spec, &before); err != nil {
				return err
			}
			s.Account, s.Provisioned = before.Account, before.Provisioned
			d.Spec, err = json.Marshal(s)
			return err
		})
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		s.Account = accountOf(s.ID, attempt)
		if f.keys.IsProvisioned(s.Account) {
			continue // another owner has it
		}
		spec, err := json.Marshal(s)
		if err != nil {
			return err
		}
		_, err = f.store.Create(ctx, store.Document{Kind: kindSubscription, ID: s.ID, Name: string(s.Account), Spec: spec,
			Status: json.RawMessage(`{}`)})
		if err == nil || !errors.Is(err, store.ErrExists) {
			return err
		}
	}
	return store.ErrConflict
}

// accountOf returns the account of a subscription: 12 digits of a digest.
func accountOf(id string, attempt int) cluster.Account {
	sum := sha256.Sum256(fmt.Appendf(nil, "azure-subscription/%s/%d", id, attempt))
	return cluster.Account(fmt.Sprintf("%012d", binary.BigEndian.Uint64(sum[:8])%1_000_000_000_000))
}

// roleOf returns the role of everybody whom ARM lets act in a subscription. Policies can be attached to
// it, and to the sessions that principalOf names.
func roleOf(account cluster.Account) string {
	return "arn:azure:iam::" + string(account) + ":role/azure"
}

// principalOf returns the principal of a caller of ARM.
func principalOf(account cluster.Account, objectID string) policy.Principal {
	if _, err := uuid.Parse(objectID); err != nil {
		objectID = "gateway"
	}
	return policy.Principal("arn:azure:sts::" + string(account) + ":assumed-role/azure/" + objectID)
}

// provisionAccount creates the account of a subscription, and attaches the policy ClusterAdmin to its role,
// because Azure has authorized the caller already. An administrator of the account can detach the policy
// afterwards.
func (f *front) provisionAccount(ctx context.Context, s subscription) error {
	if s.Provisioned {
		return nil
	}
	if err := f.keys.PutAccount(ctx, access.Account{ID: s.Account}); err != nil {
		return fmt.Errorf("creating account %s: %w", s.Account, err)
	}
	_, err := f.keys.Directory().Attach(ctx, access.AttachmentDocument{
		Document: access.Document{Account: s.Account},
		PolicyID: policy.ClusterAdmin, Type: access.TargetUser, Target: roleOf(s.Account)})
	if err != nil && !errors.Is(err, store.ErrExists) {
		return fmt.Errorf("attaching a policy in account %s: %w", s.Account, err)
	}
	_, _, err = f.store.Update(ctx, kindSubscription, s.ID, 0, func(d *store.Document) error {
		var now subscription
		err := decodeNumbers(d.Spec, &now)
		if err == nil {
			now.Provisioned = true
			d.Spec, err = json.Marshal(now)
		}
		return err
	})
	return err
}

func (f *front) getSubscription(x *exchange) error {
	if x.subscription.state() == "" {
		return rest.Errorf(http.StatusNotFound, codeResourceNotFound, "The subscription '%s' was not found.",
			x.subscription.ID)
	}
	return x.writeJSON(http.StatusOK, x.subscription.Body)
}

// deleteClusters begins the deletion of every cluster of a subscription.
func (f *front) deleteClusters(x *exchange, s subscription) error {
	for after := ""; ; {
		page, err := f.store.List(x.ctx, store.Query{Kind: kindCluster, Scope: s.ID, After: after})
		if err != nil {
			return err
		}
		for _, d := range page.Documents {
			r, err := toResource(d)
			if err == nil {
				_, err = f.beginDelete(x, r, preconditions{})
			}
			if err != nil && !errors.Is(err, store.ErrNotFound) { // another API has just deleted it
				if e, isAnswer := errors.AsType[*rest.Error](err); !isAnswer || e.Status != http.StatusConflict {
					return err
				}
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}
