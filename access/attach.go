package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// UpdateMembers adds principals to a group and removes others. Principals are of the group's account.
func (d *Directory) UpdateMembers(ctx context.Context, account cluster.Account, id string, ifVersion int64, add,
	remove []string) (GroupDocument, error) {
	for _, principal := range add {
		if err := checkPrincipal(account, policy.Principal(principal)); err != nil {
			return GroupDocument{}, err
		}
	}
	doc, err := d.inAccount(ctx, account, func(tx *store.Tx) (store.Document, error) {
		doc, _, err := tx.Update(ctx, KindGroup, id, ifVersion, func(doc *store.Document) error {
			var spec groupSpec
			if err := json.Unmarshal(doc.Spec, &spec); err != nil || cluster.Account(doc.Scope) != account {
				return store.ErrNotFound
			}
			spec.Members = append(spec.Members, add...)
			spec.Members = slices.DeleteFunc(spec.Members, func(m string) bool { return slices.Contains(remove, m) })
			slices.Sort(spec.Members)
			spec.Members = slices.Compact(spec.Members)
			if len(spec.Members) > maxMembers {
				return fmt.Errorf("a group has at most %d members: %w", maxMembers, ErrTooMany)
			}
			doc.Spec = toJSON(spec)
			return nil
		})
		if err == nil {
			err = checkReach(ctx, tx, account)
		}
		return doc, err
	})
	if err != nil {
		return GroupDocument{}, err
	}
	return toGroup(doc)
}

// Attachment returns an attachment of an account.
func (d *Directory) Attachment(ctx context.Context, account cluster.Account, id string) (AttachmentDocument, error) {
	doc, err := d.get(ctx, KindAttachment, account, id)
	if err != nil {
		return AttachmentDocument{}, err
	}
	return toAttachment(doc)
}

// Attach attaches a policy to a target of the same account. The error is ErrNoTarget when the policy
// or the group does not exist, and store.ErrExists when it is attached already.
func (d *Directory) Attach(ctx context.Context, a AttachmentDocument) (AttachmentDocument, error) {
	if a.Type == TargetUser {
		if err := checkPrincipal(a.Account, policy.Principal(a.Target)); err != nil {
			return AttachmentDocument{}, err
		}
	}
	spec := attachmentSpec{PolicyID: a.PolicyID, Type: a.Type, Target: a.Target,
		CreatedBy: store.ActorFrom(ctx).Principal}
	doc, err := d.inAccount(ctx, a.Account, func(tx *store.Tx) (store.Document, error) {
		if err := countUse(ctx, tx, spec, a.Account, +1); err != nil {
			if errors.Is(err, store.ErrNotFound) {
				err = ErrNoTarget
			}
			return store.Document{}, err
		}
		name := a.PolicyID + " " + string(a.Type) + " " + a.Target
		doc, err := tx.Create(ctx, document(KindAttachment, newID(), a.Account, name, spec))
		if err == nil {
			err = checkCount(ctx, tx, a.Account, KindAttachment, maxAttachments)
		}
		if err == nil {
			err = checkReach(ctx, tx, a.Account)
		}
		return doc, err
	})
	if err != nil {
		return AttachmentDocument{}, err
	}
	return toAttachment(doc)
}

// Detach removes an attachment.
func (d *Directory) Detach(ctx context.Context, account cluster.Account, id string) error {
	_, err := d.inAccount(ctx, account, func(tx *store.Tx) (store.Document, error) {
		doc, err := tx.GetForUpdate(ctx, KindAttachment, id)
		if err == nil {
			err = checkScope(doc, account)
		}
		if err != nil {
			return doc, err
		}
		var spec attachmentSpec
		if err := json.Unmarshal(doc.Spec, &spec); err != nil {
			return doc, fmt.Errorf("reading attachment %s: %w", id, err)
		}
		if err := countUse(ctx, tx, spec, account, -1); err != nil && !errors.Is(err, store.ErrNotFound) {
			return doc, err
		}
		return removed(doc), tx.Remove(ctx, KindAttachment, id, 0)
	})
	return err
}

// countUse adds to the counts of attachments of a policy and a group, so that neither can be deleted
// while it is attached. A managed policy has no count.
func countUse(ctx context.Context, tx *store.Tx, a attachmentSpec, account cluster.Account, n int) error {
	count := func(kind store.Kind, id string) error {
		_, _, err := tx.Update(ctx, kind, id, 0, func(doc *store.Document) error {
			var u uses
			if err := json.Unmarshal(doc.Status, &u); err != nil || cluster.Account(doc.Scope) != account {
				return store.ErrNotFound
			}
			u.Attachments += n
			doc.Status = toJSON(u)
			return nil
		})
		return err
	}
	if _, isManaged := policy.FindManaged(a.PolicyID); !isManaged {
		if err := count(KindPolicy, a.PolicyID); err != nil {
			return err
		}
	}
	if a.Type == TargetGroup {
		return count(KindGroup, a.Target)
	}
	return nil
}

// get reads a document of an account. A document of another account does not exist.
func (d *Directory) get(ctx context.Context, kind store.Kind, account cluster.Account, id string) (store.Document,
	error) {
	doc, err := d.store.Get(ctx, kind, id)
	if err == nil {
		err = checkScope(doc, account)
	}
	return doc, err
}

// checkScope returns store.ErrNotFound for a document of another account.
func checkScope(doc store.Document, account cluster.Account) error {
	if cluster.Account(doc.Scope) != account {
		return store.ErrNotFound
	}
	return nil
}

// inAccount runs a write of a document in one transaction that holds the account: it cannot be
// deleted meanwhile, and the writes of one account come one after the other. write returns the changed
// document, or removed of a removed one. inAccount returns when this process decides by the change.
func (d *Directory) inAccount(ctx context.Context, account cluster.Account,
	write func(tx *store.Tx) (store.Document, error)) (doc store.Document, err error) {
	err = d.store.Tx(ctx, func(tx *store.Tx) error {
		if _, err := tx.GetForUpdate(ctx, KindAccount, string(account)); err != nil {
			return err
		}
		doc, err = write(tx)
		return err
	})
	if err == nil && slices.Contains(directoryKinds, doc.Kind) { // the cache of the keys has the links
		d.cache.await(ctx, doc.Kind, account, doc.ID, doc.Version)
	}
	return doc, err
}

// remove removes a document of an account. The error is inUse, unless that is nil, while attachments
// use it.
func (d *Directory) remove(ctx context.Context, kind store.Kind, account cluster.Account, id string, ifVersion int64,
	inUse error) error {
	_, err := d.inAccount(ctx, account, func(tx *store.Tx) (store.Document, error) {
		doc, err := tx.GetForUpdate(ctx, kind, id)
		if err == nil {
			err = checkScope(doc, account)
		}
		if err != nil {
			return doc, err
		}
		var u uses
		if err := json.Unmarshal(doc.Status, &u); err == nil && u.Attachments > 0 && inUse != nil {
			return doc, inUse
		}
		return removed(doc), tx.Remove(ctx, kind, id, ifVersion)
	})
	return err
}

// removed returns a document as inAccount takes the removal of one.
func removed(d store.Document) store.Document {
	d.Version = 0
	return d
}

func document(kind store.Kind, id string, account cluster.Account, name string, spec any) store.Document {
	return store.Document{Kind: kind, ID: id, Scope: string(account), Name: name, Spec: toJSON(spec), Status: emptyObject}
}

// toJSON returns a spec of this package as JSON, which cannot fail.
func toJSON(spec any) json.RawMessage {
	data, err := json.Marshal(spec)
	if err != nil {
		panic("access: encoding a document: " + err.Error())
	}
	return data
}

// header returns the members that documents of every kind have.
func header(d store.Document, createdBy string) Document {
	return Document{
		ID:        d.ID,
		Account:   cluster.Account(d.Scope),
		Version:   d.Version,
		CreatedAt: d.CreatedAt,
		UpdatedAt: d.UpdatedAt,
		CreatedBy: createdBy,
	}
}

func toAccount(d store.Document) (AccountDocument, error) {
	var spec accountSpec
	err := json.Unmarshal(d.Spec, &spec)
	return AccountDocument{Document: header(d, spec.CreatedBy), Privileged: spec.Privileged}, err
}

func toPolicy(d store.Document) (PolicyDocument, error) {
	var spec policySpec
	err := json.Unmarshal(d.Spec, &spec)
	return PolicyDocument{Document: header(d, spec.CreatedBy), Name: spec.Name, Description: spec.Description,
		Text: spec.Text}, err
}

func toGroup(d store.Document) (GroupDocument, error) {
	var spec groupSpec
	err := json.Unmarshal(d.Spec, &spec)
	return GroupDocument{Document: header(d, spec.CreatedBy), Name: spec.Name, Description: spec.Description,
		Members: spec.Members}, err
}

func toAttachment(d store.Document) (AttachmentDocument, error) {
	var spec attachmentSpec
	err := json.Unmarshal(d.Spec, &spec)
	return AttachmentDocument{Document: header(d, spec.CreatedBy), PolicyID: spec.PolicyID, Type: spec.Type,
		Target: spec.Target}, err
}
