//go:build deps

// Package deps pins the modules that the packages being written need; it goes when they are in use.
package deps

import (
	_ "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	_ "github.com/cockroachdb/datadriven"
	_ "github.com/eclipse/paho.golang/autopaho"
	_ "github.com/eclipse/paho.golang/paho"
	_ "github.com/getkin/kin-openapi/openapi3"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/mochi-mqtt/server/v2"
	_ "github.com/mochi-mqtt/server/v2/listeners"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "golang.org/x/time/rate"
	_ "google.golang.org/grpc"
	_ "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	_ "k8s.io/client-go/discovery/cached/memory"
	_ "k8s.io/client-go/dynamic/dynamicinformer"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/metadata/metadatainformer"
	_ "k8s.io/client-go/restmapper"
	_ "k8s.io/client-go/tools/clientcmd"
	_ "k8s.io/client-go/util/jsonpath"
	_ "k8s.io/client-go/util/workqueue"
	_ "open-cluster-management.io/api/work/v1"
	_ "pgregory.net/rapid"
	_ "sigs.k8s.io/yaml"
)
