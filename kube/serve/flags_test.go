package serve

import (
	"io"
	"testing"

	"atoll.dev/kube/etcd"
)

func TestTheQuotaIsASize(t *testing.T) {
	for value, want := range map[string]int64{
		"": etcd.DefaultQuota, "16Mi": 16 << 20, "8Gi": 8 << 30, "4294967296": 4 << 30,
		"1Mi": -1, "9Gi": -1, "much": -1,
	} {
		args := []string{"--data-dir", "/d", "--listen", "127.0.0.1:6443"}
		if value != "" {
			args = append(args, "--etcd-quota", value)
		}
		o, err := parse(args, io.Discard)
		if want < 0 {
			if err == nil {
				t.Errorf("%q: accepted", value)
			}
		} else if err != nil || o.EtcdQuota != want {
			t.Errorf("%q: %d, %v; want %d", value, o.EtcdQuota, err, want)
		}
	}
}

func TestTheBoundOfWatchEventsIsANumber(t *testing.T) {
	for value, want := range map[string]int{
		"": 102_400, "100": 100, "102400": 102_400, "99": -1, "102401": -1, "all": -1,
	} {
		t.Setenv("ATOLL_MAX_WATCH_EVENTS", value)
		o, err := parse([]string{"--data-dir", "/d", "--listen", "127.0.0.1:6443"}, io.Discard)
		if want < 0 {
			if err == nil {
				t.Errorf("%q: accepted", value)
			}
		} else if err != nil || o.MaxWatchEvents != want {
			t.Errorf("%q: %d, %v; want %d", value, o.MaxWatchEvents, err, want)
		}
	}
}

func TestTheBoundOfRequestsIsANumber(t *testing.T) {
	for value, want := range map[string]int{"": 600, "150": 150, "10000": 10_000, "149": -1, "10001": -1, "many": -1} {
		t.Setenv("ATOLL_MAX_REQUESTS", value)
		o, err := parse([]string{"--data-dir", "/d", "--listen", "127.0.0.1:6443"}, io.Discard)
		if want < 0 {
			if err == nil {
				t.Errorf("%q: accepted", value)
			}
		} else if err != nil || o.MaxRequests != want {
			t.Errorf("%q: %d, %v; want %d", value, o.MaxRequests, err, want)
		}
	}
}
