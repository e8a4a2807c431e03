"""The tree of defaults: every key a config may set, with what it means.

`config_template` prints it as YAML, with the comment that stands above each key here.
"""

from engine.config.node import CfgNode
from engine.config.value_types import Given, Length, OneOf, Within
from engine.utils.periods import Period

CN = CfgNode

LARGEST_SEED = 2**63 - 1  # torch takes twice that: each rank adds its number

_C = CN()

# Layout of the keys, as detectron2 counts it.
_C.VERSION = 2
# Class of the trainer, "package.module:Class"; "" is engine's DefaultTrainer.
_C.TRAINER = ""
# Folder for all that a run leaves: config, logs, metrics, checkpoints, results.
_C.OUTPUT_DIR = Given("./output")
# What is kept of the code in OUTPUT_DIR/code_<time>: "changes" since the last commit, or "all".
_C.COPY_CODE = OneOf("changes", "all")
# Seed of everything random; below 0 a new one is drawn for each run, and logged.
_C.SEED = Within(-1, high=LARGEST_SEED)
# Let cuDNN time its algorithms and choose: faster for inputs of one size, not repeatable.
_C.CUDNN_BENCHMARK = Given(False)
# Precision of float32 matrix products: "highest", "high" or "medium"; "" leaves torch's choice.
_C.FLOAT32_PRECISION = OneOf("", "highest", "high", "medium")
# CPU threads for each process; 0 leaves torch's choice.
_C.THREADS = Within(0, low=0)
# How often metrics go to the console and the files: iterations, "2 epoch" or "10 min".
_C.LOG_PERIOD = Period(20)
# Iterations between pictures that a model of yours draws while it trains; 0 is never.
_C.VIS_PERIOD = Within(0, low=0)
# Time after which the run stops, saved and to be resumed: "3h50min", "90 min", "02:30:00"; "" is no
# limit. It counts from the start of the process, and leaves room for a last step and its save.
_C.TIME_LIMIT = ""
# Hooks beside the default ones, each {NAME: EMAHook, PRIORITY: NORMAL, and the hook's arguments}.
_C.HOOKS = []
# Writers beside the console, metrics.json and TensorBoard: {NAME: WandbWriter, PROJECT: digits} and
# so on, with the arguments of each.
_C.WRITERS = []

# The model.
_C.MODEL = CN()
# Registered name of the model, or its import path: package.module:Class.
_C.MODEL.META_ARCHITECTURE = ""
# Arguments of the model, any names.
_C.MODEL.ARGS = CN(new_allowed=True)
# Checkpoint whose weights training starts from and --eval-only evaluates; "" for none.
_C.MODEL.WEIGHTS = ""
# "cuda", "mps", "xpu", "cpu"; "auto" takes what there is, the CPU last.
_C.MODEL.DEVICE = "auto"

# Data sets, by the names they have in DatasetCatalog.
_C.DATASETS = CN()
# To train on; several are joined.
_C.DATASETS.TRAIN = ()
# How often each sample of a data set comes in an epoch: [[name, 2.0], ...]; others once.
_C.DATASETS.TRAIN_REPEAT_FACTOR = []
# To evaluate on while training, every TEST.EVAL_PERIOD and at the end; where empty, TEST is.
_C.DATASETS.VAL = ()
# To evaluate on after training and with --eval-only; results are kept apart.
_C.DATASETS.TEST = ()
# Test sets that share a row in the table of results: {group: [name, ...]}.
_C.DATASETS.TEST_GROUPS = CN(new_allowed=True)

# Loading of samples.
_C.DATALOADER = CN()
# Registered name of what builds the training loader.
_C.DATALOADER.TRAIN_LOADER = "build_train_loader"
# Function that changes each training sample, "package.module:function"; "" for none. One with a
# parameter `generator` draws from it what is random.
_C.DATALOADER.MAPPER = ""
# The same for test samples.
_C.DATALOADER.TEST_MAPPER = ""
# Function that makes a batch of a list of samples, "package.module:function"; "" is torch's, which
# stacks them. "engine.data:trivial_batch_collator" leaves the list: detectron2's models want it.
_C.DATALOADER.COLLATE = ""
# Worker processes for each training process; 0 loads in the training process itself.
_C.DATALOADER.NUM_WORKERS = Within(4, low=0)
# Batches that each worker prepares ahead.
_C.DATALOADER.PREFETCH_FACTOR = Within(2, low=1)
# Load into page-locked memory: faster copies to a GPU.
_C.DATALOADER.PIN_MEMORY = False
# "TrainingSampler", "RandomSubsetTrainingSampler" or "RepeatFactorTrainingSampler".
_C.DATALOADER.SAMPLER_TRAIN = "TrainingSampler"
# Share of the data that RandomSubsetTrainingSampler draws, above 0 and at most 1.
_C.DATALOADER.RANDOM_SUBSET_RATIO = Within(1.0, above=0, high=1)
# Categories in a smaller share of the samples than this are repeated (RepeatFactorTrainingSampler).
_C.DATALOADER.REPEAT_THRESHOLD = 0.0
# Repeat by the square root of the factor rather than by the factor.
_C.DATALOADER.REPEAT_SQRT = True
# Passes over the data that make one epoch.
_C.DATALOADER.NUM_FOLDS = Within(1, low=1)

# Optimization.
_C.SOLVER = CN()
# Length of training: iterations, or "90 epoch".
_C.SOLVER.MAX_ITER = Length(40000)
# Samples in a batch over all processes; must divide by their number.
_C.SOLVER.IMS_PER_BATCH = Within(16, low=1)
# Batches whose gradients make one step; one iteration is one step.
_C.SOLVER.ACCUMULATE = Within(1, low=1)
# How often to save a checkpoint: iterations, "2 epoch" or "10 min".
_C.SOLVER.CHECKPOINT_PERIOD = Period(5000)
# Processes that the numbers here are meant for: with another number, batch size and learning rate
# are scaled up and lengths down by it; 0 leaves them as they are.
_C.SOLVER.REFERENCE_WORLD_SIZE = Within(0, low=0)
# What a loss that is not finite does: "raise" ends the run, "skip" leaves out the step, "ignore".
_C.SOLVER.NONFINITE = OneOf("raise", "skip", "ignore")

# The optimizer: NAME, and any of its arguments in lower case: {NAME: AdamW, betas: [0.9, 0.95]}.
_C.SOLVER.OPTIMIZER = CN(new_allowed=True)
# Any class of torch.optim, but LBFGS, whose steps want a closure.
_C.SOLVER.OPTIMIZER.NAME = Given("SGD")
# Learning rate at the schedule's full height.
_C.SOLVER.BASE_LR = Within(0.001, low=0)
# Momentum of SGD; other optimizers take theirs from OPTIMIZER.
_C.SOLVER.MOMENTUM = Within(0.9, low=0)
# Nesterov momentum for SGD.
_C.SOLVER.NESTEROV = False
# Weight decay of all parameters that no key below and no rule treats otherwise.
_C.SOLVER.WEIGHT_DECAY = 0.0001
# Weight decay of normalization layers; null: as WEIGHT_DECAY.
_C.SOLVER.WEIGHT_DECAY_NORM = 0.0
# Weight decay of parameters named bias; null: as the others of their layer.
_C.SOLVER.WEIGHT_DECAY_BIAS = None
# Weight decay of embeddings; null: as WEIGHT_DECAY.
_C.SOLVER.WEIGHT_DECAY_EMBED = None
# Factor on the learning rate of parameters named bias.
_C.SOLVER.BIAS_LR_FACTOR = 1.0
# Rules for some parameters, by MATCH (a regular expression searched for in the full name) and TYPE
# (norm, bias, embedding, depthwise, flat or the class of the module). They set LR_MULT, DECAY_MULT,
# FREEZE or options of the optimizer; all that match apply in order, the later one wins:
# [{MATCH: ^backbone, LR_MULT: 0.1}, {TYPE: norm, DECAY_MULT: 0.0}, {MATCH: stem, FREEZE: true}]
_C.SOLVER.PARAM_RULES = []
# Smaller learning rates towards the input.
_C.SOLVER.LAYER_DECAY = CN()
# Switch it on.
_C.SOLVER.LAYER_DECAY.ENABLED = False
# Factor from one layer to the one below it.
_C.SOLVER.LAYER_DECAY.RATE = 0.9
# Spread the layers over so many; 0: as many as are found.
_C.SOLVER.LAYER_DECAY.NUM_LAYERS = 0
# "layer_wise", or "stage_wise": one factor for all blocks of a stage.
_C.SOLVER.LAYER_DECAY.TYPE = OneOf("layer_wise", "stage_wise")
# Only under this module ("backbone"); the rest has factor 1.
_C.SOLVER.LAYER_DECAY.PREFIX = ""
# Regular expression that ends at a layer's number; "" knows the usual names.
_C.SOLVER.LAYER_DECAY.PATTERN = ""
# No weight decay for biases and other parameters of one dimension.
_C.SOLVER.LAYER_DECAY.NO_DECAY_1D = True

# "WarmupMultiStepLR", "WarmupCosineLR", "WarmupStepWithFixedGammaLR", "WarmupPolyLR",
# "WarmupStepCosineLR" (steps, and a cosine from the last step on) or "WarmupConstantLR".
_C.SOLVER.LR_SCHEDULER_NAME = "WarmupMultiStepLR"
# Learning rate at which Cosine, Poly and StepCosine end.
_C.SOLVER.BASE_LR_END = 0.0
# Where MultiStep and StepCosine multiply by GAMMA: iterations, or "30 epoch".
_C.SOLVER.STEPS = (30000,)
# Factor of each step.
_C.SOLVER.GAMMA = 0.1
# Number of equally spaced steps of StepWithFixedGamma.
_C.SOLVER.NUM_DECAYS = 3
# Power of Poly.
_C.SOLVER.POWER = 0.9
# Length of the warm-up: iterations, or "2 epoch"; 0 for none.
_C.SOLVER.WARMUP_ITERS = Length(1000)
# "linear" or "constant".
_C.SOLVER.WARMUP_METHOD = OneOf("linear", "constant")
# The warm-up starts at this times the schedule's first value.
_C.SOLVER.WARMUP_FACTOR = Within(0.001, low=0)
# Or at this learning rate (for a group with a multiplier, times that); null: by WARMUP_FACTOR.
_C.SOLVER.WARMUP_START_LR = None
# Squeeze the whole schedule into what follows the warm-up, rather than cover its beginning.
_C.SOLVER.RESCALE_INTERVAL = False
# A curve by which the momentum (betas[0] of Adam and its kin) is multiplied.
_C.SOLVER.MOMENTUM_SCHEDULE = CN()
# A name as in LR_SCHEDULER_NAME; "" keeps the momentum constant.
_C.SOLVER.MOMENTUM_SCHEDULE.NAME = ""
# Factor at which Cosine, Poly and StepCosine end.
_C.SOLVER.MOMENTUM_SCHEDULE.END = 1.0
# As SOLVER.STEPS.
_C.SOLVER.MOMENTUM_SCHEDULE.STEPS = ()
# As SOLVER.GAMMA.
_C.SOLVER.MOMENTUM_SCHEDULE.GAMMA = 0.1
# As SOLVER.NUM_DECAYS.
_C.SOLVER.MOMENTUM_SCHEDULE.NUM_DECAYS = 3
# As SOLVER.POWER.
_C.SOLVER.MOMENTUM_SCHEDULE.POWER = 0.9
# The first factor, such as 0.9 or 1.1.
_C.SOLVER.MOMENTUM_SCHEDULE.WARMUP_FACTOR = Within(1.0, low=0)
# Length of the warm-up: iterations, or "2 epoch"; 0 for none.
_C.SOLVER.MOMENTUM_SCHEDULE.WARMUP_ITERS = Length(0)
# "linear" or "constant".
_C.SOLVER.MOMENTUM_SCHEDULE.WARMUP_METHOD = OneOf("linear", "constant")
# As SOLVER.RESCALE_INTERVAL.
_C.SOLVER.MOMENTUM_SCHEDULE.RESCALE_INTERVAL = False

# Clipping of gradients.
_C.SOLVER.CLIP_GRADIENTS = CN()
# Switch it on.
_C.SOLVER.CLIP_GRADIENTS.ENABLED = False
# "value", "norm", or "full_model": the norm of the whole model, whatever SCOPE says.
_C.SOLVER.CLIP_GRADIENTS.CLIP_TYPE = OneOf("value", "norm", "full_model")
# The largest element, or the largest norm.
_C.SOLVER.CLIP_GRADIENTS.CLIP_VALUE = 1.0
# Order of the norm; .inf is the largest element.
_C.SOLVER.CLIP_GRADIENTS.NORM_TYPE = 2.0
# What shares one norm: "model", "group" or "parameter".
_C.SOLVER.CLIP_GRADIENTS.SCOPE = OneOf("model", "group", "parameter")

# Mixed precision.
_C.SOLVER.AMP = CN()
# Switch it on.
_C.SOLVER.AMP.ENABLED = False
# "float16" or "bfloat16".
_C.SOLVER.AMP.PRECISION = OneOf("float16", "bfloat16")
# Store the loss scale as a metric.
_C.SOLVER.AMP.LOG_SCALE = False
# What float16 multiplies the loss by.
_C.SOLVER.AMP.LOSS_SCALE = CN()
# The first scale.
_C.SOLVER.AMP.LOSS_SCALE.INIT = Within(65536.0, low=1)
# Steps in a row with finite gradients after which the scale grows; 0 keeps it as it is.
_C.SOLVER.AMP.LOSS_SCALE.GROWTH_INTERVAL = Within(2000, low=0)
# What the scale is multiplied by then, above 1.
_C.SOLVER.AMP.LOSS_SCALE.GROWTH_FACTOR = 2.0
# What it is multiplied by after a step with infinite gradients, which is skipped; below 1.
_C.SOLVER.AMP.LOSS_SCALE.BACKOFF_FACTOR = 0.5

# Checkpoints; SOLVER.CHECKPOINT_PERIOD says how often.
_C.CHECKPOINT = CN()
# Periodic checkpoints that are kept, the newest ones; 0 keeps all.
_C.CHECKPOINT.KEEP_LAST = Within(0, low=0)
# Also keep the best by this metric of evaluations: "+accuracy" (or all of the name, as in
# "+classification/accuracy") for the highest, "-loss" for the lowest; "" is off.
_C.CHECKPOINT.BEST_METRIC = ""
# Write checkpoints while training goes on; takes memory for a copy of the state, at times two.
_C.CHECKPOINT.BACKGROUND = True
# Resume the last checkpoint in OUTPUT_DIR where there is one, as --resume does.
_C.CHECKPOINT.AUTO_RESUME = False

# Evaluation.
_C.TEST = CN()
# How often to evaluate: iterations, "2 epoch" or "10 min"; 0 is at the end only.
_C.TEST.EVAL_PERIOD = Period(0)
# Samples in a batch, on each process.
_C.TEST.BATCH_SIZE = Within(64, low=1)
# Seed of what is random in an evaluation, such as a masked loss: each then draws the same; training
# goes on with its own. Below 0 evaluations draw on.
_C.TEST.SEED = Within(-1, high=LARGEST_SEED)
# Store the raw predictions with the results.
_C.TEST.SAVE_PREDICTIONS = False
# Results that must come out, each [task, metric, value, tolerance], with the data set in front
# where there are several; else the process ends with 1.
_C.TEST.EXPECTED_RESULTS = []
# Exact statistics for batch norm before each evaluation.
_C.TEST.PRECISE_BN = CN()
# Switch it on.
_C.TEST.PRECISE_BN.ENABLED = False
# Training batches that the statistics are taken from.
_C.TEST.PRECISE_BN.NUM_ITER = Within(200, low=1)

# Exponential moving average of the weights, which evaluations then use.
_C.EMA = CN()
# Switch it on.
_C.EMA.ENABLED = False
# Share of the old average in the new one.
_C.EMA.DECAY = Within(0.999, low=0, high=1)
# When the average starts: after so many iterations, or "2 epoch".
_C.EMA.START = Length(0)
# How often the average is updated: iterations, "2 epoch" or "10 min".
_C.EMA.PERIOD = Period(1)
# Average the buffers too (statistics of batch norm) rather than copy them.
_C.EMA.BUFFERS = False

# Stop when a metric no longer improves.
_C.EARLY_STOPPING = CN()
# "+accuracy" (or all of the name: "+classification/accuracy") if higher is better, "-loss" if lower
# is; "" is off.
_C.EARLY_STOPPING.METRIC = ""
# Evaluations without improvement before the run stops.
_C.EARLY_STOPPING.PATIENCE = Within(5, low=1)
# The least change that counts as one.
_C.EARLY_STOPPING.MIN_DELTA = Within(0.0, low=0)

# How the model is spread over processes.
_C.PARALLEL = CN()
# "ddp": each process holds the whole model. "fsdp": each holds a part of every weight. "none": each
# trains a model of its own. With one process all are the same.
_C.PARALLEL.STRATEGY = OneOf("ddp", "fsdp", "none")
# Batch norm takes its statistics over all processes; needs an accelerator.
_C.PARALLEL.SYNC_BN = Given(False)
# Arguments of torch's DistributedDataParallel.
_C.PARALLEL.DDP = CN()
# Send the buffers of rank 0 to all before each forward pass.
_C.PARALLEL.DDP.BROADCAST_BUFFERS = Given(False)
# Look for parameters that took no part in the loss; costs time, needed where some do not.
_C.PARALLEL.DDP.FIND_UNUSED_PARAMETERS = Given(False)
# The same parameters take part in each step: lets DDP save work.
_C.PARALLEL.DDP.STATIC_GRAPH = Given(False)
# Gradients live in the buckets that DDP sends: saves their copies, in memory and in each step.
_C.PARALLEL.DDP.GRADIENT_AS_BUCKET_VIEW = Given(True)
# Send gradients as "fp16" or "bf16"; "none" sends them as they are.
_C.PARALLEL.DDP.COMPRESSION = OneOf("none", "fp16", "bf16")
# Arguments of torch's fully_shard.
_C.PARALLEL.FSDP = CN()
# Classes of modules that are sharded one by one, such as [TransformerBlock]; the rest is as one.
_C.PARALLEL.FSDP.SHARD_CLASSES = Given(())
# Precision of the gathered weights, to compute with: "bfloat16", "float16"; "" is the model's own.
_C.PARALLEL.FSDP.PARAM_DTYPE = OneOf("", "bfloat16", "float16", "float32")
# Precision in which gradients are summed over processes; "" is that of PARAM_DTYPE.
_C.PARALLEL.FSDP.REDUCE_DTYPE = OneOf("", "bfloat16", "float16", "float32")
# Free gathered weights after the forward pass, and gather them again for the backward pass.
_C.PARALLEL.FSDP.RESHARD_AFTER_FORWARD = Given(True)
# Keep parts that are not in use in host memory.
_C.PARALLEL.FSDP.CPU_OFFLOAD = Given(False)

# torch.compile.
_C.COMPILE = CN()
# Switch it on.
_C.COMPILE.ENABLED = False
# A backend of torch.compile: "inductor", "aot_eager", "eager", …
_C.COMPILE.BACKEND = "inductor"
# "reduce-overhead", "max-autotune", …; "" is torch's default.
_C.COMPILE.MODE = ""
# Whether sizes change from batch to batch: true, false, or null to find out.
_C.COMPILE.DYNAMIC = None
# Refuse a model that cannot be compiled as a whole.
_C.COMPILE.FULLGRAPH = False

# The hooks every run has; each can be switched off.
_C.DEFAULT_HOOKS = CN()
# Times the iterations.
_C.DEFAULT_HOOKS.IterationTimer = CN()
# False leaves it out.
_C.DEFAULT_HOOKS.IterationTimer.ENABLED = True
# Steps the learning-rate schedule.
_C.DEFAULT_HOOKS.LRScheduler = CN()
# False leaves it out.
_C.DEFAULT_HOOKS.LRScheduler.ENABLED = True
# Names parameters that do not learn, after the first backward pass.
_C.DEFAULT_HOOKS.FirstStepCheck = CN()
# False leaves it out.
_C.DEFAULT_HOOKS.FirstStepCheck.ENABLED = True
# Saves a checkpoint every SOLVER.CHECKPOINT_PERIOD and at the end.
_C.DEFAULT_HOOKS.PeriodicCheckpointer = CN()
# False leaves it out.
_C.DEFAULT_HOOKS.PeriodicCheckpointer.ENABLED = True
# Stops at SIGTERM, SIGINT and SIGUSR1, saved and to be resumed.
_C.DEFAULT_HOOKS.StopOnSignal = CN()
# False leaves it out.
_C.DEFAULT_HOOKS.StopOnSignal.ENABLED = True
# Evaluates every TEST.EVAL_PERIOD and at the end.
_C.DEFAULT_HOOKS.EvalHook = CN()
# False leaves it out.
_C.DEFAULT_HOOKS.EvalHook.ENABLED = True
# Shows a bar instead of lines, on a terminal.
_C.DEFAULT_HOOKS.ProgressBar = CN()
# False leaves it out.
_C.DEFAULT_HOOKS.ProgressBar.ENABLED = True
# Runs the writers every LOG_PERIOD and at the end.
_C.DEFAULT_HOOKS.PeriodicWriter = CN()
# False leaves it out.
_C.DEFAULT_HOOKS.PeriodicWriter.ENABLED = True

# Reports runs that hang.
_C.DEFAULT_HOOKS.Watchdog = CN()
# False leaves it out.
_C.DEFAULT_HOOKS.Watchdog.ENABLED = True

# When a run counts as hanging: no step, and no batch of an evaluation, ends ...
_C.WATCHDOG = CN()
# ... for this long ("10 min", "1h30min"),
_C.WATCHDOG.TIMEOUT = "10 min"
# and for so many times what a step usually takes.
_C.WATCHDOG.FACTOR = 10.0

# Parameters, FLOPs and activations of the model.
_C.ANALYSIS = CN()
# Log them at the start, for the first batch, and which parameters are trained.
_C.ANALYSIS.ENABLED = False


def get_cfg() -> CfgNode:
    """A copy of the defaults, to merge a file and overrides into."""
    return _C.clone()
