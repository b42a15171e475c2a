package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"atoll.dev/cluster"
	"atoll.dev/store"
)

// PutAccount creates an account or changes its rights. This process uses the
// change when PutAccount returns, other processes within a second.
func (k *KeyStore) PutAccount(ctx context.Context, a Account) error {
	if !accountPattern.MatchString(string(a.ID)) {
		return fmt.Errorf("account %s is not 12 digits: %w", quoted(a.ID), ErrInvalid)
	}
	spec, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("putting account %s: %w", a.ID, err)
	}
	for {
		doc, _, err := k.store.Update(ctx, KindAccount, string(a.ID), 0, func(d *store.Document) error {
			d.Spec = spec
			return nil
		})
		if errors.Is(err, store.ErrNotFound) {
			if err := k.directory.removeScope(ctx, a.ID); err != nil { // an interrupted deletion has left it
				return fmt.Errorf("putting account %s: %w", a.ID, err)
			}
			doc, err = k.store.Create(ctx, store.Document{Kind: KindAccount, ID: string(a.ID), Scope: string(a.ID), Spec: spec,
				Status: emptyObject})
			if errors.Is(err, store.ErrExists) {
				continue // another process was first
			}
		}
		if err != nil {
			return fmt.Errorf("putting account %s: %w", a.ID, err)
		}
		k.cache.await(ctx, doc)
		return nil
	}
}

// Accounts returns all accounts in the order of their ids.
func (k *KeyStore) Accounts(ctx context.Context) ([]Account, error) {
	var accounts []Account
	err := k.forEach(ctx, KindAccount, func(d store.Document) error {
		var a Account
		err := json.Unmarshal(d.Spec, &a)
		accounts = append(accounts, a)
		return err
	})
	return accounts, err
}

// Account returns an account.
func (d *Directory) Account(ctx context.Context, id cluster.Account) (AccountDocument, error) {
	doc, err := d.store.Get(ctx, KindAccount, string(id))
	if err != nil {
		return AccountDocument{}, err
	}
	return toAccount(doc)
}

// CreateAccount provisions an account. The error is store.ErrExists when it exists. Documents that an
// interrupted deletion has left are removed first.
func (d *Directory) CreateAccount(ctx context.Context, a Account) (AccountDocument, error) {
	if err := checkAccount(a.ID); err != nil {
		return AccountDocument{}, err
	}
	if _, err := d.store.Get(ctx, KindAccount, string(a.ID)); errors.Is(err, store.ErrNotFound) {
		if err := d.removeScope(ctx, a.ID); err != nil {
			return AccountDocument{}, err
		}
	}
	spec := accountSpec{a, store.ActorFrom(ctx).Principal}
	doc, err := d.store.Create(ctx, document(KindAccount, string(a.ID), a.ID, "", spec))
	if err != nil {
		return AccountDocument{}, err
	}
	d.cache.await(ctx, KindAccount, a.ID, string(a.ID), doc.Version)
	return toAccount(doc)
}

// DeleteAccount removes an account with everything that it has here. Its principals may do nothing
// any more as soon as the account is removed.
func (d *Directory) DeleteAccount(ctx context.Context, id cluster.Account, ifVersion int64) error {
	if err := d.store.Remove(ctx, KindAccount, string(id), ifVersion); err != nil {
		return err
	}
	d.cache.await(ctx, KindAccount, id, string(id), 0)
	return d.removeScope(ctx, id)
}

// removeScope removes the documents of an account.
func (d *Directory) removeScope(ctx context.Context, account cluster.Account) error {
	if err := checkAccount(account); err != nil {
		return err // the store takes an empty scope for all scopes
	}
	for _, kind := range []store.Kind{KindLink, KindLinkCode, KindAttachment, KindAdmin, KindPolicy, KindGroup} {
		for {
			page, err := d.store.List(ctx, store.Query{Kind: kind, Scope: string(account), Limit: 500})
			if err != nil {
				return err
			}
			for _, doc := range page.Documents {
				if err := d.store.Remove(ctx, kind, doc.ID, 0); err != nil && !errors.Is(err, store.ErrNotFound) {
					return err
				}
			}
			if page.Next == "" {
				break
			}
		}
	}
	return nil
}
