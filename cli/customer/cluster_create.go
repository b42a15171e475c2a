package customer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/release"
)

// createFlags are the flags of `cluster create`.
type createFlags struct {
	file                  string
	release, display      string
	hibernated, protected bool
	tags, properties      map[string]string
	managementCluster     client.ManagementClusterName
	selector              map[string]string
	pools                 poolFlag
	issuer                issuerFlags
}

func clusterCreate(session *terminal.Session) *cobra.Command {
	var f createFlags
	cmd := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Create a cluster, with node pools if wanted",
		Long: `Requests a cluster. It returns when the region has accepted the request; with --wait
it returns when the cluster can be used, its nodes included. Ctrl-C ends the waiting, not
the cluster. With -f the request is in a file (YAML or JSON, "-" for standard input): a
document of the kind Cluster, and documents of the kind NodePool; a flag overrides the file.`,
		Example: `  atoll cluster create demo --node-pool name=workers,replicas=2,instance-type=m6a.xlarge --wait
  atoll cluster create -f examples/cluster.yaml --wait
  atoll cluster create spare --hibernated --tag team=web --release 1.36.3`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.file, "file", "f", "", `file with the request; "-" for standard input`)
	fs.Var(&f.pools, "node-pool",
		"a node pool: name=N,replicas=R,instance-type=T,provider=P,label=K=V,taint=K=V:EFFECT,auto-repair=BOOL; repeatable")
	fs.StringVar(&f.release, "release", "", "Kubernetes version, such as 1.36.3 (default: the region's newest)")
	fs.StringVar(&f.display, "display-name", "", "a name for people")
	fs.BoolVar(&f.hibernated, "hibernated", false, "begin asleep: the first connection starts the control plane")
	fs.BoolVar(&f.protected, "delete-protection", false, "refuse the cluster's deletion until atoll cluster unprotect")
	fs.StringToStringVar(&f.tags, "tag", nil, "tag, k=v; repeatable")
	fs.StringToStringVar(&f.properties, "property", nil, "property, k=v; repeatable")
	fs.StringVar((*string)(&f.managementCluster), "management-cluster", "",
		"name of the management cluster that must host the cluster (default: the region chooses)")
	fs.StringToStringVar(&f.selector, "selector", nil, "label, k=v, that its management cluster must have; repeatable")
	addIssuerFlags(cmd, &f.issuer)
	wait := terminal.AddWaitFlags(cmd, "ready")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o, err := buildRequest(session, f, args)
		if err != nil {
			return err
		}
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			return createCluster(session, ctx, api, o, wait, out)
		})
	}
	return cmd
}

// buildRequest builds the request from the file, the argument and the flags. Flags override the file.
func buildRequest(session *terminal.Session, f createFlags, args []string) (o clusterRequest, err error) {
	if f.file != "" {
		data, err := readFile(session, f.file)
		if err != nil {
			return o, err
		}
		if o, err = parseRequest(f.file, data); err != nil {
			return o, err
		}
	}
	if len(args) > 0 {
		o.name = args[0]
	}
	if o.name == "" {
		return o, errors.New("name the cluster: atoll cluster create NAME, or `name` in the file")
	}
	if o.spec == nil {
		o.spec = map[string]any{}
	}
	image := ""
	if f.release != "" {
		image = release.Image(f.release)
	}
	issuer, err := f.issuer.issuer(session)
	if err != nil {
		return o, err
	}
	if issuer != nil {
		if err := setMember(o.spec, []any{issuer}, "authentication", "issuers"); err != nil {
			return o, fmt.Errorf("%s: spec: %w", f.file, err)
		}
	}
	err = errors.Join(
		setNonZero(o.spec, f.display, "displayName"),
		setNonZero(o.spec, f.protected, "deleteProtection"),
		setNonZero(o.spec, f.hibernated, "hibernated"),
		setNonZero(o.spec, image, "hostedCluster", "release", "image"),
		setNonZero(o.spec, f.managementCluster, "placement", "managementCluster"),
	)
	for path, pairs := range map[string]map[string]string{"tags": f.tags, "properties": f.properties} {
		for k, v := range pairs {
			err = errors.Join(err, setMember(o.spec, v, path, k))
		}
	}
	for k, v := range f.selector {
		err = errors.Join(err, setMember(o.spec, v, "placement", "selector", k))
	}
	if err != nil {
		return o, fmt.Errorf("%s: spec: %w", f.file, err)
	}
	for _, p := range f.pools.pools {
		merged := false
		for i, q := range o.pools {
			if q.name == p.name {
				o.pools[i].spec = jsonvalue.Overlay(q.spec, p.spec)
				merged = true
			}
		}
		if !merged {
			o.pools = append(o.pools, p)
		}
	}
	return o, nil
}

// setNonZero sets a member of spec by its path, unless value is the zero value: then its flag was not given.
func setNonZero[T comparable](spec map[string]any, value T, path ...string) error {
	if value == *new(T) {
		return nil
	}
	return setMember(spec, value, path...)
}

// readFile reads a file, or standard input.
func readFile(session *terminal.Session, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(session.In)
	}
	return os.ReadFile(name)
}

// createCluster creates the cluster and its node pools, and waits for them with --wait. It checks
// the specs of all of them before the first request.
func createCluster(session *terminal.Session, ctx context.Context, api *client.Client, o clusterRequest,
	wait *terminal.WaitFlags,
	out *terminal.Output) error {
	// All specs are decoded and checked before the first request: a mistake creates nothing.
	request := platform.ClusterRequest{Name: o.name, TargetProjectID: o.project}
	if err := decodeStrict(o.spec, &request.Spec); err != nil {
		return fmt.Errorf("cluster %s: spec: %w", o.name, err)
	}
	pools := make([]platform.NodePoolRequest, len(o.pools))
	for i, p := range o.pools {
		pools[i].Name = p.name
		if err := decodeStrict(p.spec, &pools[i].Spec); err != nil {
			return fmt.Errorf("node pool %s: spec: %w", p.name, err)
		}
	}
	for _, p := range pools {
		if err := checkNodePool(ctx, api, p); err != nil {
			return fmt.Errorf("node pool %s: nothing was created: %w", p.Name, err)
		}
	}
	start := time.Now()
	cluster, err := api.CreateCluster(ctx, request)
	if err != nil {
		return err
	}
	progress := out.Progress(session)
	fmt.Fprintf(progress, "cluster %s accepted: id %s (%s)\n", cluster.Name, cluster.ID,
		terminal.FormatDuration(time.Since(start)))
	for _, p := range pools {
		p.ClusterID = cluster.ID
		if _, err := api.CreateNodePool(ctx, p); err != nil {
			return fmt.Errorf(
				"cluster %s is being created, but not its node pool %s; correct it and repeat `atoll nodepool create "+
					"%s --cluster %s`, or delete the cluster: %w",
				cluster.Name, p.Name, p.Name, cluster.Name, err)
		}
		fmt.Fprintf(progress, "node pool %s accepted\n", p.Name)
	}
	if wait.Wait {
		last := lastStageWith(len(pools))
		if err := awaitReady(session, ctx, api, cluster.Cluster, last, wait.Timeout, progress); err != nil {
			return err
		}
	}
	if out.Format == "table" {
		if !wait.Wait {
			session.Printf("watch it: atoll cluster watch %s\n", cluster.Name)
		}
		return nil
	}
	if cluster, err = api.Cluster(ctx, client.ClusterID(cluster.ID)); err != nil {
		return err
	}
	return out.PrintNamed(session.Out, cluster.Cluster, cluster.Name)
}

// checkNodePool returns the error that the region would refuse a node pool with, before its cluster
// exists. It sends the request without a cluster: the region creates nothing and its refusal names
// all other invalid fields. Any other failure is ignored here, because creating the cluster reports
// it.
func checkNodePool(ctx context.Context, api *client.Client, p platform.NodePoolRequest) error {
	_, err := api.CreateNodePool(ctx, p)
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Status != http.StatusUnprocessableEntity {
		return nil
	}
	rejected := slices.DeleteFunc(slices.Clone(e.Fields), func(f platform.FieldError) bool {
		return f.Field == "cluster_id"
	})
	if len(rejected) == 0 {
		return nil
	}
	narrowed := *e
	narrowed.Fields, narrowed.Reason = rejected, rejected[0].Field+" "+rejected[0].Message
	return &narrowed
}

// decodeStrict converts an object to a type of the API. A field that the type does not have is an
// error.
func decodeStrict(object, into any) error {
	data, err := json.Marshal(object)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}
