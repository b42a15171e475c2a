package adapter

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"
)

// Doer sends requests; *http.Client is one. Retries, the bearer token of the
// config and default headers are the engine's; identity (TLS) and traces are
// the Doer's.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Options are what an engine works with.
type Options struct {
	Config    *Config
	Task      *Task
	Transport Transport // may be nil for tasks without resources
	API       Doer      // for api_call
	// LookupEnv is asked for the variables that params name (env.NAME), and for
	// no others. It is os.LookupEnv by default.
	LookupEnv func(string) (string, bool)
	Now       func() time.Time // time.Now by default
	Log       *slog.Logger     // slog.Default by default
	Observer  Observer

	single bool // calls are not repeated
}

// Observer is told what metrics want to know. Each may be nil.
type Observer struct {
	// Deleting is called when the deletion of an object begins, Deleted when
	// it was asked for or failed.
	Deleting func(kind string)
	Deleted  func(kind string, err error, took time.Duration)
}

// Engine executes a task. It is compiled once; its Run may be called by
// several goroutines.
type Engine struct {
	o           Options
	task        *program
	api         *apiClient
	stored      storedTimes
	warned      sync.Map       // *expr that failed and was logged
	env, config map[string]any // what expressions see by these names
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
	return &Engine{o: o, task: p, api: api, env: env, config: o.Config.visible()}, nil
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

// Phase is a part of an execution.
type Phase string

// The phases, in their order, as traces, conditions and metrics name them.
const (
	ParamExtraction Phase = "param_extraction"
	Preconditions   Phase = "preconditions"
	Resources       Phase = "resources"
	PostActions     Phase = "post_actions"
)

// Status is how an execution, or a step of it, went.
type Status string

// The statuses, as traces name them. A precondition that is not met, and a
// resource that is gone, are no failures.
const (
	Success Status = "success"
	Failed  Status = "failed"
	Skip    Status = "skipped"
)

// Result is what an execution came to.
type Result struct {
	Event  Event
	Status Status
	// Skipped says that resources were left alone on purpose, SkipReason why.
	Skipped    bool
	SkipReason string
	// Gone says that CLM does not know the resource any more: nothing was done.
	Gone bool
	// Reported says that a status report reached CLM: by the task's post
	// actions, or, when they could not, by the engine itself.
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

// Err is what failed, nil after success.
func (r *Result) Err() error {
	for _, p := range []Phase{ParamExtraction, Preconditions, Resources, PostActions} {
		if err := r.Errors[p]; err != nil {
			return err
		}
	}
	return nil
}

// PreconditionResult is what a precondition came to.
type PreconditionResult struct {
	Name     string
	Status   Status
	Matched  bool
	Captured map[string]any
	Called   bool // its api_call was made
	Err      error
}

// ResourceResult is what was done for a resource.
type ResourceResult struct {
	Name       string // in the task config
	Kind       string // of the object, as are the next two
	Namespace  string
	ObjectName string
	Status     Status
	Operation  Operation
	Reason     string
	Err        error
	// DiscoveredState is the object that was found before it was deleted; else nil.
	DiscoveredState Object
}

// PostActionResult is what a post action came to.
type PostActionResult struct {
	Name       string
	Status     Status
	SkipReason string
	Called     bool // its api_call was made
	HTTPStatus int
	Err        error
}

// StepError is a failure and where it happened.
type StepError struct {
	Phase Phase
	Step  string // the name of the param, precondition, resource or action
	Op    string // what was done
	Err   error
}

func (e *StepError) Error() string { return fmt.Sprintf("%s %s: %s: %v", e.Phase, e.Step, e.Op, e.Err) }
func (e *StepError) Unwrap() error { return e.Err }
