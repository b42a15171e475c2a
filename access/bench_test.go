package access

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/client"
	"atoll.dev/store"
)

// latencies measures each call of a benchmark, and reports p50 and p99 in microseconds.
type latencies []time.Duration

func (l *latencies) measure(f func()) {
	begun := time.Now()
	f()
	*l = append(*l, time.Since(begun))
}

func (l latencies) report(b *testing.B) {
	slices.Sort(l)
	for name, share := range map[string]float64{"p50-µs": 0.5, "p99-µs": 0.99} {
		b.ReportMetric(float64(l[int(share*float64(len(l)-1))].Nanoseconds())/1000, name)
	}
}

// directoryWith returns a directory of one account with n policies that are all attached to principal. statement
// returns the text of the policy with a number.
func directoryWith(b *testing.B, n int, statement func(int) string) *Directory {
	spec := func(v any) json.RawMessage {
		text, err := json.Marshal(v)
		if err != nil {
			b.Fatal(err)
		}
		return text
	}
	documents := []store.Document{{Kind: KindAccount, ID: account, Scope: account, Version: 1,
		Spec: spec(Account{ID: account}), Status: spec(adminCount{Admins: 1})}}
	for i := range n {
		id := fmt.Sprintf("p%d", i)
		documents = append(documents, store.Document{Kind: KindPolicy, ID: id, Scope: account, Version: 1,
			Spec: spec(policySpec{Name: id, Text: statement(i)})},
			store.Document{Kind: KindAttachment, ID: "a" + id, Scope: account, Version: 1,
				Spec: spec(attachmentSpec{PolicyID: id, Type: TargetUser, Target: principal})})
	}
	d := &Directory{}
	d.cache.init()
	d.cache.apply(store.Batch{Relist: true, First: true, Last: true, Documents: documents})
	return d
}

// taggedResources are clusters whose tags a front has read.
type taggedResources struct{ byPath }

func (taggedResources) Complete(_ context.Context, _ Identity, of policy.Resource) (policy.Resource, error) {
	of.Tags = map[string]string{"team": "team-499", "stage": "production"}
	return of, nil
}

// BenchmarkProofAndDecision is a signed GET from the parsed request to the handler: signature, limits of the account
// and decision by 1,000 attached policies, each about one cluster.
func BenchmarkProofAndDecision(b *testing.B) {
	benchmarkSignedGET(b, byPath{}, directoryWith(b, 1000, func(i int) string {
		return fmt.Sprintf(`permit (principal, action in [ROSA::Action::"DescribeCluster",
			ROSA::Action::"UpdateCluster"], resource == ROSA::Cluster::"c%d");`, i)
	}))
}

// BenchmarkProofAndConditions is the same with as many policies as may reach a principal, each with a condition that is
// evaluated. The last one permits.
func BenchmarkProofAndConditions(b *testing.B) {
	benchmarkSignedGET(b, taggedResources{}, directoryWith(b, maxReach, func(i int) string {
		return fmt.Sprintf(`permit (principal, action == ROSA::Action::"DescribeCluster", resource)
			when { resource.hasTag("team") && resource.getTag("team") == "team-%d" };`, i)
	}))
}

func benchmarkSignedGET(b *testing.B, resources Resources, d *Directory) {
	keys := testKeys()
	key := keys[testID]
	key.Account, key.Principal, key.Privileged = account, principal, false
	keys[testID] = key
	ran := 0
	rt := NewRouter(Options{Log: quiet, Region: testRegion, Policy: d, Resources: resources,
		Limiter:    NewLimiter(Limits{Rates: map[Class]Rate{Reads: {PerSecond: 1e9, Burst: 1e9}}}),
		Identifier: &Verifier{Region: testRegion, Keys: keys, Now: func() time.Time { return testTime }}})
	rt.Handle(Route{"GET", "/api/v0/clusters/{id}", "DescribeCluster", "Cluster", "id", Customers},
		func(http.ResponseWriter, *http.Request) error { ran++; return nil })
	var all latencies
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		r := request(b, "GET", fmt.Sprintf("/api/v0/clusters/c%d", i%1000), "")
		if err := client.Sign(r, nil, creds, testTime); err != nil {
			b.Fatal(err)
		}
		r.RemoteAddr = "192.0.2.1:1"
		w := httptest.NewRecorder()
		b.StartTimer()
		all.measure(func() { rt.ServeHTTP(w, r) })
		if ran != i+1 {
			b.Fatal(w.Code, w.Body)
		}
	}
	all.report(b)
}

// BenchmarkLimits is what the limits of an account add to a request.
func BenchmarkLimits(b *testing.B) {
	l := NewLimiter(Limits{Rates: map[Class]Rate{Reads: {PerSecond: 1e9, Burst: 1e9}}})
	var all latencies
	for b.Loop() {
		all.measure(func() {
			if err := l.take(http.Header{}, account, Reads); err != nil {
				b.Fatal(err)
			}
			end, err := l.begin(account, Reads)
			if err != nil {
				b.Fatal(err)
			}
			end()
		})
	}
	all.report(b)
}
