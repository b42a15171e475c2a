package access

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// The account and its administrators are several documents. A privileged account is open to all of its
// principals only when its own document counts no administrators, either.
func TestAPrivilegedAccountIsClosedUntilItsAdministratorsAreRead(t *testing.T) {
	for status, isFree := range map[string]bool{`{}`: true, `{"admins":0}`: true, `{"admins":1}`: false} {
		d := &Directory{}
		d.cache.init()
		d.cache.apply(store.Batch{Relist: true, First: true, Last: true, Documents: []store.Document{{
			Kind: KindAccount, ID: account, Scope: account, Version: 1, Status: json.RawMessage(status),
			Spec: json.RawMessage(`{"accountId":"` + account + `","privileged":true}`),
		}}})
		caller := Identity{Principal: principal, Account: account, Privileged: true}
		_, err := d.Decide(t.Context(), Question{Caller: caller, Action: "ListAccounts", Audience: Operators})
		e, _ := errors.AsType[*rest.Error](err)
		if isFree && err != nil || !isFree && (e == nil || e.Status != http.StatusForbidden) {
			t.Errorf("status %s: %v", status, err)
		}
		if got := d.permitsAll(caller, "DescribeCluster"); got != isFree {
			t.Errorf("status %s: permits all: %v", status, got)
		}
	}
}

// An account that is put after an interrupted deletion has nothing of the deleted account.
func TestPuttingAnAccountRemovesWhatADeletionHasLeft(t *testing.T) {
	s := openStore(t, pgtest.DSN(t), store.Hooks{})
	k := NewKeyStore(s, nil, CacheObserver{})
	for range 2 {
		if err := k.PutAccount(t.Context(), Account{ID: account, Privileged: true}); err != nil {
			t.Fatal(err)
		}
		if admins, err := k.directory.Admins(t.Context(), account); err != nil || len(admins) > 0 {
			t.Errorf("administrators of a new account: %v, %v", admins, err)
		}
		if err := k.directory.CreateAdmin(t.Context(), account, principal); err != nil {
			t.Fatal(err)
		}
		if err := k.PutAccount(t.Context(), Account{ID: account, Privileged: true}); err != nil {
			t.Fatal(err)
		}
		if admins, err := k.directory.Admins(t.Context(), account); err != nil || len(admins) != 1 {
			t.Errorf("administrators of an account that exists: %v, %v", admins, err)
		}
		if err := s.Remove(t.Context(), KindAccount, account, 0); err != nil { // and no further
			t.Fatal(err)
		}
	}
}
