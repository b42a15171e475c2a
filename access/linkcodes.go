package access

import (
	"context"
	"errors"
	"fmt"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// AccountLinkCodes returns a part of the link codes of an account, by id, and how many it has. Expired codes stay in
// the list for a day. No result has the code itself, which the region does not know.
func (d *Directory) AccountLinkCodes(ctx context.Context, account cluster.Account, w Window) ([]LinkCode, int, error) {
	return listIn(ctx, d, KindLinkCode, account, w, d.toLinkCode)
}

// toLinkCode returns the description of the code in a document. A code whose sealed text does not open links nobody;
// the list has it with the values of its spec, so that an administrator can withdraw it.
func (d *Directory) toLinkCode(doc store.Document) (LinkCode, error) {
	if code, err := openLinkCode(d.keys.sealer, doc); err == nil {
		return code, nil
	}
	return readLinkCode(doc)
}

// DeleteLinkCode withdraws a link code by the id of its document: nobody can redeem it from then on. The error is
// store.ErrNotFound when the account has no such code, such as one that somebody has redeemed.
func (d *Directory) DeleteLinkCode(ctx context.Context, account cluster.Account, id string) error {
	if err := d.remove(ctx, KindLinkCode, account, id, 0, nil); err != nil {
		return err
	}
	d.keys.cache.awaitState(ctx, func(s *cached) bool { _, known := s.codes[id]; return !known })
	return nil
}

// codesOfAccountSQL selects the link codes that can be redeemed and that are of an account, or that a principal of the
// account created in another account, as operators do. Transactions remove them in the order of their ids.
const codesOfAccountSQL = `select id, coalesce(spec->>'principalArn', ''), coalesce(spec->>'createdBy', '')
	from document where kind = 'LinkCode' and removed_at is null and (spec->>'expiresAt')::timestamptz > now()
	and (scope = $1 or split_part(spec->>'createdBy', ':', 5) = $1) order by id`

// removeLinkCodesOf removes the link codes, of any account, that name a principal or that the principal created. A
// session of a role created its codes for the role. RedeemLink reads the code again in its transaction, so that no
// code is good when the transaction of tx has ended.
func removeLinkCodesOf(ctx context.Context, tx *store.Tx, account cluster.Account, principal policy.Principal) error {
	ids, err := linkCodesOf(ctx, tx, account, principal)
	if err != nil {
		return fmt.Errorf("reading the link codes of %s: %w", principal, err)
	}
	for _, id := range ids {
		// Somebody may have redeemed a code of another account meanwhile.
		if err := tx.Remove(ctx, KindLinkCode, id, 0); err != nil && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("removing the link codes of %s: %w", principal, err)
		}
	}
	return nil
}

func linkCodesOf(ctx context.Context, tx *store.Tx, account cluster.Account, principal policy.Principal) (ids []string,
	err error) {
	rows, err := tx.Query(ctx, codesOfAccountSQL, account)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var of, creator policy.Principal
		if err := rows.Scan(&id, &of, &creator); err != nil {
			return nil, err
		}
		if of == principal || creator == principal || holderOf(creator) == principal {
			ids = append(ids, id)
		}
	}
	return ids, rows.Err()
}
