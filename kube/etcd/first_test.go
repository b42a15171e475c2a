package etcd

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAnUnfinishedFirstStartBeginsAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	left := filepath.Join(dir, "left")
	for range 2 {
		first, err := begin(dir)
		if err != nil || !first {
			t.Fatalf("begin: first %v, %v", first, err)
		}
		if _, err := os.Stat(left); err == nil {
			t.Fatal("what an unfinished start left is still there")
		}
		if err := os.MkdirAll(left, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := finish(dir); err != nil {
		t.Fatal(err)
	}
	if first, err := begin(dir); err != nil || first {
		t.Errorf("after the end: first %v, %v", first, err)
	}
	if _, err := os.Stat(left); err != nil {
		t.Error("finished data was removed")
	}
}

func TestDataOfUnknownOriginIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if first, err := begin(dir); err != nil || first {
		t.Errorf("first %v, %v", first, err)
	}
}
