package customer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
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
	"atoll.dev/release"
)

// createFlags are what the flags of `cluster create` say of a cluster.
type createFlags struct {
	file                  string
	release, display      string
	hibernated, protected bool
	tags, properties      map[string]string
	managementCluster     string
	selector              map[string]string
	pools                 poolFlag
}

func clusterCreate(c *terminal.Session) *cobra.Command {
	var f createFlags
	cmd := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Create a cluster, and node pools with it",
		Long: `Asks the region for a cluster. It returns when the region has taken the request, with
--wait when the cluster can be used, its nodes included. Ctrl-C ends the waiting, not
the cluster. With -f the request is in a file (YAML or JSON, "-" for standard input): a
document of the kind Cluster, and documents of the kind NodePool; flags are stronger.`,
		Example: `  atoll cluster create demo --node-pool name=workers,replicas=2,instance-type=m6a.xlarge --wait
  atoll cluster create -f examples/cluster.yaml --wait
  atoll cluster create spare --hibernated --tag team=web --release 1.36.3`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.file, "file", "f", "", `file with the request; "-" for standard input`)
	fs.Var(&f.pools, "node-pool",
		"a node pool: name=N,replicas=R,instance-type=T,label=K=V,taint=K=V:EFFECT,auto-repair=BOOL; repeatable")
	fs.StringVar(&f.release, "release", "", "Kubernetes version, such as 1.36.3 (default: the region's newest)")
	fs.StringVar(&f.display, "display-name", "", "a name for people")
	fs.BoolVar(&f.hibernated, "hibernated", false, "asleep until somebody connects")
	fs.BoolVar(&f.protected, "delete-protection", false, "refuse its deletion until it is unprotected")
	fs.StringToStringVar(&f.tags, "tag", nil, "tag, k=v; repeatable")
	fs.StringToStringVar(&f.properties, "property", nil, "property, k=v; repeatable")
	fs.StringVar(&f.managementCluster, "management-cluster", "", "the management cluster that it is to live on")
	fs.StringToStringVar(&f.selector, "selector", nil, "label, k=v, that its management cluster must have; repeatable")
	wait := terminal.AddWaitFlags(cmd, "ready")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o, err := orderOf(c, f, args)
		if err != nil {
			return err
		}
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			return createCluster(c, ctx, api, o, wait, out)
		})
	}
	return cmd
}

// orderOf makes one order of a file and of flags.
func orderOf(c *terminal.Session, f createFlags, args []string) (o clusterOrder, err error) {
	if f.file != "" {
		data, err := readFile(c, f.file)
		if err != nil {
			return o, err
		}
		if o, err = parseOrder(data); err != nil {
			return o, fmt.Errorf("%s: %w", f.file, err)
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
	err = errors.Join(
		setIf(f.display != "", o.spec, f.display, "displayName"),
		setIf(f.protected, o.spec, true, "deleteProtection"),
		setIf(f.hibernated, o.spec, true, "hibernated"),
		setIf(f.release != "", o.spec, release.Image(f.release), "hostedCluster", "release", "image"),
		setIf(f.managementCluster != "", o.spec, f.managementCluster, "placement", "managementCluster"),
	)
	for path, pairs := range map[string]map[string]string{"tags": f.tags, "properties": f.properties} {
		for k, v := range pairs {
			err = errors.Join(err, set(o.spec, v, path, k))
		}
	}
	for k, v := range f.selector {
		err = errors.Join(err, set(o.spec, v, "placement", "selector", k))
	}
	if err != nil {
		return o, fmt.Errorf("%s: spec: %w", f.file, err)
	}
	for _, p := range f.pools.pools {
		merged := false
		for i, q := range o.pools {
			if q.name == p.name {
				o.pools[i].spec = mergeSpecs(q.spec, p.spec)
				merged = true
			}
		}
		if !merged {
			o.pools = append(o.pools, p)
		}
	}
	return o, nil
}

func setIf(given bool, spec map[string]any, value any, path ...string) error {
	if !given {
		return nil
	}
	return set(spec, value, path...)
}

// mergeSpecs lays one spec over another.
func mergeSpecs(under, over map[string]any) map[string]any {
	all := maps.Clone(under)
	if all == nil {
		all = map[string]any{}
	}
	for k, v := range over {
		a, isObject := all[k].(map[string]any)
		b, both := v.(map[string]any)
		if isObject && both {
			v = mergeSpecs(a, b)
		}
		all[k] = v
	}
	return all
}

// readFile reads a file, or standard input.
func readFile(c *terminal.Session, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(c.In)
	}
	return os.ReadFile(name)
}

func createCluster(c *terminal.Session, ctx context.Context, api *client.Client, o clusterOrder,
	wait *terminal.WaitFlags,
	out *terminal.Output) error {
	// Everything is made out before anything is asked for.
	request := platform.ClusterRequest{Name: o.name, TargetProjectID: o.project}
	if err := recast(o.spec, &request.Spec); err != nil {
		return fmt.Errorf("cluster %s: spec: %w", o.name, err)
	}
	pools := make([]platform.NodePoolRequest, len(o.pools))
	for i, p := range o.pools {
		pools[i].Name = p.name
		if err := recast(p.spec, &pools[i].Spec); err != nil {
			return fmt.Errorf("node pool %s: spec: %w", p.name, err)
		}
	}
	for _, p := range pools {
		if err := checkNodePool(ctx, api, p); err != nil {
			return fmt.Errorf("node pool %s: nothing was created: %w", p.Name, err)
		}
	}
	begun := time.Now()
	k, err := api.CreateCluster(ctx, request)
	if err != nil {
		return err
	}
	progress := out.Progress(c)
	fmt.Fprintf(progress, "cluster %s accepted: id %s (%s)\n", k.Name, k.ID, terminal.Took(time.Since(begun)))
	for _, p := range pools {
		p.ClusterID = k.ID
		if _, err := api.CreateNodePool(ctx, p); err != nil {
			return fmt.Errorf(
				"cluster %s is being made, but not its node pool %s; mend that and go on with `atoll nodepool create "+
					"%s --cluster %s`, or delete the cluster: %w",
				k.Name, p.Name, p.Name, k.Name, err)
		}
		fmt.Fprintf(progress, "node pool %s accepted\n", p.Name)
	}
	if wait.Wait {
		if err := awaitReady(c, ctx, api, k.Cluster, len(pools) > 0, wait.Timeout, progress); err != nil {
			return err
		}
	}
	if out.Format == "table" {
		if !wait.Wait {
			c.Printf("look on: atoll cluster watch %s\n", k.Name)
		}
		return nil
	}
	if k, err = api.Cluster(ctx, k.ID); err != nil {
		return err
	}
	return out.PrintNamed(c.Out, k.Cluster, k.Name)
}

// checkNodePool says what the region would refuse a node pool for, before there
// is its cluster: a request that names no cluster makes nothing, and the refusal
// names all else that is wrong with it. What other trouble there is shows when
// the cluster is asked for.
func checkNodePool(ctx context.Context, api *client.Client, p platform.NodePoolRequest) error {
	_, err := api.CreateNodePool(ctx, p)
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Status != http.StatusUnprocessableEntity {
		return nil
	}
	wrong := slices.DeleteFunc(slices.Clone(e.Fields), func(f platform.FieldError) bool {
		return f.Field == "cluster_id"
	})
	if len(wrong) == 0 {
		return nil
	}
	refused := *e
	refused.Fields, refused.Reason = wrong, wrong[0].Field+" "+wrong[0].Message
	return &refused
}

// recast turns an object into a type of the API. What that does not know is an
// error, not dropped.
func recast(object, into any) error {
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
