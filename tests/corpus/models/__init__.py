"""Twenty-four models of published packages, with random weights: what training teams deliver.

Each is the package's own code with its own interface; the few adapters turn what no package of
compiled code can take or give (windows of a data loader, tables of features) into tensors. They
need `make corpus`'s environment.
"""

from tests.corpus.models.language import LANGUAGE
from tests.corpus.models.model import CorpusModel
from tests.corpus.models.recommenders import RECOMMENDERS
from tests.corpus.models.series import SERIES
from tests.corpus.models.tables import TABLES
from tests.corpus.models.vision import VISION

MODELS = (*VISION, *LANGUAGE, *SERIES, *RECOMMENDERS, *TABLES)

__all__ = ["MODELS", "CorpusModel"]
