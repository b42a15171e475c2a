package adapter

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// Doer sends HTTP requests; *http.Client is one. The engine retries and adds the bearer token and
// the default headers of the config; the Doer adds the client's certificate and traces.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Options configure an Engine.
type Options struct {
	Config    *Config
	Task      *Task
	Transport Transport // may be nil for tasks without resources
	API       Doer      // for api_call
	// LookupEnv looks up the variables that the task names (env.NAME), and no others. The default
	// is os.LookupEnv.
	LookupEnv func(string) (string, bool)
	Now       func() time.Time // time.Now by default
	Log       *slog.Logger     // slog.Default by default
	Observer  Observer

	noRetries bool // calls are not retried
}

// Observer has callbacks for metrics. Each may be nil.
type Observer struct {
	// Deleting is called before the engine requests the deletion of an object, Deleted when the
	// request has succeeded or failed.
	Deleting func(kind string)
	Deleted  func(kind string, err error, took time.Duration)
}

// Engine runs a task, which it compiles once. Several goroutines may call Run.
type Engine struct {
	o           Options
	task        *program
	api         *apiClient
	stored      storedTimes
	warned      sync.Map       // *expr that failed and was logged
	env, config map[string]any // the values of env and config in expressions
}

// New compiles a task. The error is Findings when the task is wrong.
func New(o Options) (*Engine, error) {
	if o.Config == nil || o.Task == nil {
		return nil, errors.New("adapter: a config and a task are required")
	}
	o = o.withDefaults()
	c := newCompiler(o.Config, o.Task, o.Now)
	p := c.compile()
	if err := c.errors.err(); err != nil {
		return nil, err
	}
	if o.Transport == nil && len(p.resources) > 0 {
		return nil, errors.New("adapter: the task has resources, but there is no transport")
	}
	api, err := newAPIClient(o)
	if err != nil {
		return nil, fmt.Errorf("adapter: %w", err)
	}
	env := map[string]any{}
	for _, name := range p.envs {
		if value, ok := o.LookupEnv(name); ok {
			env[name] = value
		}
	}
	return &Engine{o: o, task: p, api: api, env: env, config: o.Config.forTasks()}, nil
}

func (o Options) withDefaults() Options {
	if o.LookupEnv == nil {
		o.LookupEnv = os.LookupEnv
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Observer.Deleting == nil {
		o.Observer.Deleting = func(string) {}
	}
	if o.Observer.Deleted == nil {
		o.Observer.Deleted = func(string, error, time.Duration) {}
	}
	return o
}

// Phase is a part of a run.
type Phase string

// The phases, in their order, as traces, conditions and metrics name them.
const (
	ParamExtraction Phase = "param_extraction"
	Preconditions   Phase = "preconditions"
	Resources       Phase = "resources"
	PostActions     Phase = "post_actions"
)

// Status is the outcome of a run or of one of its steps.
type Status string

// The statuses, as traces name them. An unmet precondition and a deleted resource are no failures.
const (
	Success Status = "success"
	Failed  Status = "failed"
	Skip    Status = "skipped"
)

// Result is the outcome of a run.
type Result struct {
	Event  Event
	Status Status
	// Skipped is true when the run skipped resources on purpose; SkipReason is the reason.
	Skipped    bool
	SkipReason string
	// Gone is true when the resource does not exist in CLM any more: the run did nothing.
	Gone bool
	// Reported is true when CLM accepted a status report of this run: the task's, or the engine's own.
	Reported      bool
	Params        map[string]any
	Preconditions []PreconditionResult
	Resources     []ResourceResult
	Discovered    map[string]any // objects that were found, and those inside of works, by their names
	Seen          map[string]any // resources.<name> and resources.<name>.<nested>, as expressions see them
	PostActions   []PostActionResult
	Errors        map[Phase]error
	// Warnings are expressions that failed and whose value is null or their default.
	Warnings []error
}

// Err returns the first failure, nil after success.
func (r *Result) Err() error {
	for _, p := range []Phase{ParamExtraction, Preconditions, Resources, PostActions} {
		if err := r.Errors[p]; err != nil {
			return err
		}
	}
	return nil
}

// wrote reports whether the run created or changed an object.
func (r *Result) wrote() bool {
	return slices.ContainsFunc(r.Resources, func(x ResourceResult) bool {
		return x.Operation == Created || x.Operation == Updated || x.Operation == Recreated
	})
}

// PreconditionResult is the outcome of a precondition.
type PreconditionResult struct {
	Name     string
	Status   Status
	Matched  bool
	Captured map[string]any
	Called   bool // its api_call was made
	Err      error
}

// ResourceResult is the outcome of a resource of the task.
type ResourceResult struct {
	Name       string // in the task config
	Kind       string // of the object, as are the next two
	Namespace  string
	ObjectName string
	Status     Status
	Operation  Operation
	Reason     string
	Err        error
	// DiscoveredState is the object before its deletion; nil without a deletion.
	DiscoveredState Object
}

// PostActionResult is the outcome of a post action.
type PostActionResult struct {
	Name       string
	Status     Status
	SkipReason string
	Called     bool // its api_call was made
	HTTPStatus int
	Err        error
}

// StepError is a failure with its place in the task.
type StepError struct {
	Phase Phase
	Step  string // the name of the param, precondition, resource or action
	Op    string // what failed, such as "applying the object"
	Err   error
}

func (e *StepError) Error() string { return fmt.Sprintf("%s %s: %s: %v", e.Phase, e.Step, e.Op, e.Err) }
func (e *StepError) Unwrap() error { return e.Err }
